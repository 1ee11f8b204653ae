-- The one file. What cannot change later is decided here: rowid tables for what is written once (WITHOUT ROWID
-- costs three times as much with wide random keys), a narrow hot table, and one partial index for claims.

create table meta (
  name text primary key,
  value any
) strict, without rowid;

create table events (
  source text not null,
  id text not null,
  seq integer not null unique,
  type text,
  received_at integer not null,
  size integer not null,
  body_hash blob not null,
  verified text not null,
  parent integer,
  reply integer,
  primary key (source, id)
) strict;

create table payloads (
  seq integer primary key,
  headers blob not null,
  content_type text,
  encoding text,
  body blob not null
) strict;

create table erased (
  seq integer primary key,
  at integer not null
) strict;

create table replies (
  reply integer primary key,
  digest blob not null unique,
  status integer not null,
  content_type text not null,
  body blob not null
) strict;

create table deliveries (
  seq integer not null,
  target text not null,
  source text not null,
  lane integer not null default 0,
  order_key text,
  state text not null,
  due integer not null,
  run integer not null default 1,
  attempts integer not null default 0,
  failures integer not null default 0,
  suspect integer not null default 0,
  alone integer not null default 0,
  acquitted integer not null default 0,
  boot text,
  started_at integer,
  duration integer,
  outcome text,
  error text,
  processed_at integer,
  rerun integer,
  primary key (seq, target)
) strict, without rowid;

create index deliveries_due on deliveries (target, lane, source, due, seq)
  where state = 'pending' and suspect = 0;
create index deliveries_suspect on deliveries (due, seq) where suspect > 0;
create index deliveries_open on deliveries (state, target, seq) where state in ('parked', 'running', 'dead');
create index deliveries_order on deliveries (target, order_key, seq)
  where order_key is not null and state <> 'done';

create index deliveries_flying on deliveries (target, order_key)
  where order_key is not null and state in ('pending', 'running');

create table attempts (
  seq integer not null,
  target text not null,
  run integer not null,
  number integer not null,
  started_at integer not null,
  duration integer,
  outcome text not null,
  detail text,
  primary key (seq, target, run, number)
) strict, without rowid;

create table replays (
  seq integer primary key,
  replays integer not null,
  last_at integer not null,
  conflicts integer not null default 0,
  revived_at integer
) strict;

create table variants (
  seq integer not null,
  body_hash blob not null,
  first_at integer not null,
  content_type text,
  encoding text,
  body blob not null,
  primary key (seq, body_hash)
) strict, without rowid;

create table refused (
  n integer primary key autoincrement,
  source text not null,
  at integer not null,
  slug text not null,
  detail text not null,
  method text not null,
  url text not null,
  headers blob not null,
  body blob not null,
  accepted_at integer
) strict;

create index refused_source on refused (source, n);

-- minute 0 is the whole history; other rows are unix minutes, for the charts. `what` is received, replays,
-- a delivery state, unrouted, or refused:<slug>.
create table totals (
  source text not null,
  what text not null,
  minute integer not null default 0,
  n integer not null,
  primary key (minute, source, what)
) strict, without rowid;

-- One row for each call by (caller, key), caller '' where nobody is named. `state` is running, done, failed (free, its
-- attempts remembered), interrupted (running when the process ended, may run again) or unknown, which has no finished_at.
create table operations (
  caller text not null,
  key text not null,
  operation text not null,
  request_hash blob not null,
  state text not null,
  boot text,
  started_at integer not null,
  finished_at integer,
  attempts integer not null default 0,
  status integer,
  headers blob,
  body blob,
  error text,
  primary key (caller, key)
) strict;

create index operations_ended on operations (finished_at) where finished_at is not null;
create index operations_open on operations (state) where state in ('running', 'unknown');

-- `position` is the seq up to which deliveries have been queued, `upto` the last one that is meant; `fed` when all are.
create table reruns (
  id integer primary key,
  state text not null,
  filter text not null,
  rate real,
  again integer not null default 0,
  matched integer not null,
  position integer not null,
  upto integer not null,
  fed integer not null default 0,
  queued integer not null default 0,
  skipped integer not null default 0,
  done integer not null default 0,
  dead integer not null default 0,
  who text not null,
  created_at integer not null,
  finished_at integer
) strict;

create index reruns_open on reruns (id) where state = 'running' and fed = 0;

create table acts (
  n integer primary key,
  at integer not null,
  who text not null,
  what text not null,
  detail text not null
) strict;

create table paused (
  target text primary key,
  at integer not null,
  why text not null
) strict, without rowid;

-- How a group is written: rows of several kinds in one statement, which is one transaction. Every step of a statement
-- gives Python's lock away; under load the dozen steps of an ordinary transaction cost twice what SQLite does.
create view arriving as
  select 0 as kind, '' as source, '' as id, 0 as seq, '' as type, 0 as at, 0 as size, x'' as body_hash, '' as verified,
    0 as parent, 0 as reply, x'' as headers, '' as content_type, '' as encoding, x'' as body
  where false;

create trigger arriving_event instead of insert on arriving when new.kind = 1 begin
  insert into events (source, id, seq, type, received_at, size, body_hash, verified, parent, reply)
    values (new.source, new.id, new.seq, new.type, new.at, new.size, new.body_hash, new.verified, new.parent, new.reply)
    on conflict (source, id) do nothing;
  select raise(abort, 'twice') where changes() = 0;
  insert into payloads (seq, headers, content_type, encoding, body)
    values (new.seq, new.headers, new.content_type, new.encoding, new.body);
end;

-- source, id: target, type: state, verified: order key, at: due
create trigger arriving_delivery instead of insert on arriving when new.kind = 2 begin
  insert into deliveries (seq, target, source, order_key, state, due)
    values (new.seq, new.id, new.source, new.verified, new.type, new.at);
end;

-- source, id: what, at: minute, seq: difference
create trigger arriving_total instead of insert on arriving when new.kind = 3 begin
  insert into totals (source, what, minute, n) values (new.source, new.id, new.at, new.seq)
    on conflict do update set n = n + excluded.n;
end;

create trigger arriving_number instead of insert on arriving when new.kind = 4 begin
  update meta set value = new.seq where name = 'next_seq';
end;

create view v_deliveries as
  select seq, target, source, state, run, attempts, due, started_at, duration, outcome, error, processed_at, order_key, lane
  from deliveries;

create view v_events as
  select e.seq, e.source, e.id, e.type, e.received_at, e.size, lower(hex(e.body_hash)) as body_hash, e.verified, e.parent,
    (select case when count(*) = 0 then 'unrouted' when max(d.state = 'dead') then 'dead'
        when max(d.state = 'running') then 'running' when max(d.state <> 'done') then 'pending' else 'done' end
      from deliveries d where d.seq = e.seq) as state,
    (select case when max(d.state <> 'done') then null else max(d.processed_at) end
      from deliveries d where d.seq = e.seq) as processed_at
  from events e;

create view raw_events as
  select v.id, v.source, (select p.body from payloads p where p.seq = v.seq) as payload, v.received_at, v.processed_at
  from v_events v;
