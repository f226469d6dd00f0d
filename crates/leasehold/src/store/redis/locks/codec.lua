-- One operation on one lock, second part: decodes and encodes leases and tickets for
-- `slow_path.lua`. `prologue.lua` describes the formats, codec.rs reads and writes the same.

local INLINE, LISTED = 1, 2
local RECORD, LEASE, TICKET = '>BdddBc0HH', '>ddddddBd', '>dddddBc0'
local EVENT, IDENTITY, EXTRAS, RELEASE_REQUEST, ITEM =
  '>BdddddBc0Bc0Bc0Bc0', '>c16BHBc0', '>Bc0I4c0', '>Bc0Bc0', '>I4c0'
local EXCLUSIVE, SHARED = 0, 1
local ACTIVE, RELEASING, RELEASED = 0, 1, 2
local KINDS = { acquired = 0, released = 1, expired = 2, stolen = 3, forced = 4, release_requested = 5,
  queued = 6, withdrawn = 7, renewed = 8 }

-- Decodes the identity and the extras of a request and also keeps both encoded: events and new
-- leases copy them.
local function decode_request(request, packed, from)
  local identity_end, extras_end
  request.id, request.mode, request.slots, request.holder, identity_end = decode(IDENTITY, packed, from)
  request.boot, request.extra_json, extras_end = decode(EXTRAS, packed, identity_end)
  request.identity, request.extras =
    string.sub(packed, from, identity_end - 1), string.sub(packed, identity_end, extras_end - 1)
  return extras_end
end

local function decode_lease(packed)
  local lease, at = {}, nil
  lease.token, lease.acquired_at, lease.renewed_at, lease.expires_at, lease.renewals, lease.ttl, lease.status,
    lease.requested_at, at = decode(LEASE, packed)
  at = decode_request(lease, packed, at)
  lease.requested_by, lease.request_reason = decode(RELEASE_REQUEST, packed, at)
  return lease
end

local function encode_lease(lease)
  return encode(LEASE, lease.token, lease.acquired_at, lease.renewed_at, lease.expires_at, lease.renewals, lease.ttl,
    lease.status, lease.requested_at) .. lease.identity .. lease.extras
    .. encode(RELEASE_REQUEST, #lease.requested_by, lease.requested_by, #lease.request_reason, lease.request_reason)
end

local function decode_ticket(packed)
  local ticket, at = {}, nil
  ticket.since, ticket.expires_at, ticket.ticket_ttl, ticket.ttl, ticket.priority, ticket.notify_to, at =
    decode(TICKET, packed)
  decode_request(ticket, packed, at)
  return ticket
end

local function encode_ticket(ticket)
  return encode(TICKET, ticket.since, ticket.expires_at, ticket.ticket_ttl, ticket.ttl, ticket.priority,
    #ticket.notify_to, ticket.notify_to) .. ticket.identity .. ticket.extras
end

-- Returns the lease id of an encoded ticket without decoding the rest: it follows five numbers and
-- the notification address.
local function id_of(packed)
  local at = 42 + string.byte(packed, 41)
  return string.sub(packed, at, at + 15)
end

local function encode_list(list)
  local parts = {}
  for at, packed in ipairs(list) do
    parts[at] = encode(ITEM, #packed, packed)
  end
  return table.concat(parts)
end

