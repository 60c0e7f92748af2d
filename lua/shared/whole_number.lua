-- Defines whole(text): the number in a field of the state; nil if it is none, or not exact in Lua.
-- tonumber alone takes "nan", "1.5" and "0x10" too, which become an error in the middle of a script, or no id at all.
local function whole(text)
  local number = text and tonumber(string.match(text, '^%d+$') or '')
  return number and number <= 9007199254740992 and number or nil
end
