-- What an append does if Redis refuses its XADD, in place in a loop that goes on until reply is a text.
-- Needs   reply, stream, start, next_offset, moved, external (true: entries of others were dealt with before)
-- Leaves  external: true if entries of others are in the way, to be dealt with now
if type(reply) == 'table' then
  if not (string.find(reply.err, '^ERR The ID ') or string.find(reply.err, '^ERR The stream ')) then
    return reply
  elseif external then
    return pack('>BI4', 1, moved)
  end
  external = true
elseif not reply then
  if start < next_offset then
    return redis.error_reply('KAFKA_STORAGE_ERROR ' .. stream .. ' is missing, and its entries with it')
  end
  call('XGROUP', 'CREATE', stream, 'korvet', '$', 'MKSTREAM')
  call('XGROUP', 'DESTROY', stream, 'korvet')
end
