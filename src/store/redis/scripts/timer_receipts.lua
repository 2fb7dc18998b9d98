-- The first part of scripts that write the receipt of a timer at a receiver.
--
-- KEYS: the hash of past timers is named by the caller. No ARGV is read here.
-- Returns nothing: it declares a function for the second part. The function changes nothing if the timer is not known any
-- more, or was registered again since. It answers the type of the timer if it changed it. See timer_text.rs for the
-- letters, and `Timer::with_receipt` and `Receipt::state` for the rules.
local function write_receipt(past_timers, id, moment, receiver, letter, text)
  text = text or redis.call('HGET', past_timers, id) or ''
  local state, of, due, at, receipts, data = string.match(text, '^([fdx])(%S+) (%S+) (%S+) (%S+) (.*)$')
  if not state or due ~= moment then
    return nil
  end
  local from, to = string.find(',' .. receipts, ',' .. receiver .. ':', 1, true)
  if not from or string.sub(receipts, to, to) == letter then
    return nil
  end
  receipts = string.sub(receipts, 1, to - 1) .. letter .. string.sub(receipts, to + 1)
  state = 'd'
  if string.find(receipts, ':[pb]') then
    state = 'f'
  elseif string.find(receipts, ':[xu]') then
    state = 'x'
  end
  redis.call('HSET', past_timers, id, state .. of .. ' ' .. due .. ' ' .. at .. ' ' .. receipts .. ' ' .. data)
  return of
end

