-- Defines measure(fields, ms, from): the bytes of an entry as stored, and its timestamp (text) as readers see it, which
-- is its first field `timestamp` that holds an int64, else the milliseconds of its id. Its fields begin at `from`.
local function measure(fields, ms, from)
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
  return size, timestamp or string.format('%d', ms)
end
