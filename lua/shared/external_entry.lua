-- Defines measure(fields, from): the bytes of an entry as stored, and its timestamp (text), which is its first field
-- `timestamp` that holds an int64; nil without one. Its fields begin at `from`.
-- time_of(id, now_ms): the timestamp (text) of one without such a field: the milliseconds of its id, with a dense id now.
local function measure(fields, from)
  local size, timestamp = 0, nil
  for at = from, #fields, 2 do
    local name, content = fields[at], fields[at + 1]
    size = size + #name + #content
    if name == 'timestamp' and not timestamp and #content <= 20 then
      local digits = string.match(content, '^%-?(%d+)$')
      if digits and (#digits < 19 or #digits == 19 and digits <= '9223372036854775807'
          or content == '-9223372036854775808') then
        timestamp = content
      end
    end
  end
  return size, timestamp
end

local function time_of(id, now_ms)
  local ms = string.match(id, '^%d+')
  return (ms == '0' or tonumber(ms) > 9007199254740992) and string.format('%d', now_ms) or ms
end
