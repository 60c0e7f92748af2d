#!lua flags=allow-oom
-- Tries every command that Korvet uses within scripts or on keys: a command that the user may not run (ACL) or the server
-- lacks fails the start, not the middle of an append.
-- KEYS     1 stream: a key that does not exist, with the name of a log
--          2 side: likewise, with the name of a side key
-- ARGV     1 channel
-- Returns  what was refused, a text for each command; an empty list if all is well
-- Errors   none
--
-- allow-oom: a broker must start when memory is full: topics are deleted through it.

local stream, side, channel = KEYS[1], KEYS[2], ARGV[1]

local commands = {
  {'TIME'},
  {'INFO', 'replication'},
  {'UNLINK', stream, side},
  {'XADD', stream, '1-1', 'field', 'value'},
  {'XLEN', stream},
  {'XRANGE', stream, '-', '+'},
  {'XREVRANGE', stream, '+', '-'},
  {'XINFO', 'STREAM', stream},
  {'XDEL', stream, '1-1'},
  {'XTRIM', stream, 'MINID', '~', '1-1', 'LIMIT', '1'},
  {'XSETID', stream, '2-1', 'ENTRIESADDED', '1', 'MAXDELETEDID', '1-1'},
  {'XGROUP', 'CREATE', stream, 'group', '0'},
  {'XGROUP', 'SETID', stream, 'group', '0'},
  {'XINFO', 'GROUPS', stream},
  {'XCLAIM', stream, 'group', 'member', '0', '1-1', 'JUSTID'},
  {'XPENDING', stream, 'group'},
  {'XACK', stream, 'group', '1-1'},
  {'XGROUP', 'DELCONSUMER', stream, 'group', 'member'},
  {'XGROUP', 'DESTROY', stream, 'group'},
  {'EXISTS', stream},
  {'HSET', side, 'field', 'value'},
  {'HGET', side, 'field'},
  {'HINCRBY', side, 'number', '1'},
  {'TYPE', side},
  {'HMGET', side, 'field'},
  {'HGETALL', side},
  {'HEXISTS', side, 'field'},
  {'HKEYS', side},
  {'HLEN', side},
  {'HSCAN', side, '0'},
  {'HDEL', side, 'field'},
  {'DEL', side},
  {'ZADD', side, '1', 'member'},
  {'ZCARD', side},
  {'ZCOUNT', side, '0', '1'},
  {'ZSCORE', side, 'member'},
  {'ZSCAN', side, '0'},
  {'ZRANGE', side, '0', '0'},
  {'ZREVRANGE', side, '0', '0'},
  {'ZRANGEBYSCORE', side, '0', '1'},
  {'ZREVRANGEBYSCORE', side, '1', '0'},
  {'ZREMRANGEBYRANK', side, '1', '1'},
  {'ZREMRANGEBYSCORE', side, '2', '2'},
  {'ZREM', side, 'other'},
  {'ZPOPMIN', side},
  {'DEL', side},
  {'SET', side, '1'},
  {'GET', side},
  {'INCR', side},
  {'INCRBY', side, '1'},
  {'PTTL', side},
  {'UNLINK', stream, side},
  {'SPUBLISH', channel, ''},
}

local refused = {}
for _, command in ipairs(commands) do
  local reply = redis.pcall(unpack(command))
  if type(reply) == 'table' and reply.err then
    refused[#refused + 1] = command[1] .. ': ' .. reply.err
  end
end
return refused
