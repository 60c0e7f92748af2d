-- Refuses, before anything is written, while the slot of the keys moves to another node of a cluster. Redis then refuses a
-- script each key that the script has emptied or deleted itself, and what it wrote before stays: this is for scripts
-- that cannot put such a removal last. The caller tries again until the slot has moved. Without a cluster it is a look-up.
-- Needs KEYS[2], a key with the hash tag of the slot, whose name with one more colon no key has
if type(redis.pcall('EXISTS', KEYS[2] .. ':')) == 'table' then
  return redis.error_reply('TRYAGAIN the slot of ' .. KEYS[2] .. ' moves to another node')
end
