-- History of a fleet, schema 2. The tables are public: see docs/history.md.

-- The version of the schema, a digest of the id of the fleet that writes, and from when on it may have records.
CREATE TABLE meta (
    version int NOT NULL,
    made_at timestamptz NOT NULL DEFAULT now(),
    fleet text,
    begins_at timestamptz
);
INSERT INTO meta (version) VALUES (2);

-- How far each source of the engine is written; changes in the transaction of its rows.
CREATE TABLE cursors (
    source text NOT NULL,
    partition int NOT NULL,
    at timestamptz NOT NULL,
    PRIMARY KEY (source, partition)
);

-- Time for which rows may be missing, because the engine no longer had them.
CREATE TABLE losses (
    table_name text NOT NULL,
    from_at timestamptz NOT NULL,
    until_at timestamptz NOT NULL,
    noticed_at timestamptz NOT NULL,
    why text NOT NULL,
    PRIMARY KEY (table_name, from_at)
);

-- Since when a table has all of its rows: older ones were dropped, or had left the engine when history began.
CREATE TABLE kept (table_name text PRIMARY KEY, since timestamptz NOT NULL);

-- The opening and the closing of each offline record.
CREATE TABLE transitions (
    at timestamptz NOT NULL,
    transition text NOT NULL,
    record text NOT NULL,
    kind text NOT NULL,
    unit text NOT NULL,
    labels jsonb NOT NULL,
    cause text NOT NULL,
    last_seen timestamptz NOT NULL,
    offline_since timestamptz NOT NULL,
    detected_at timestamptz NOT NULL,
    closed_by text,
    PRIMARY KEY (record, transition, at)
) PARTITION BY RANGE (at);
CREATE INDEX transitions_at ON transitions USING brin (at);
CREATE INDEX transitions_unit ON transitions (kind, unit, at);

-- The records that are open, with all of their openings, which may be dropped from transitions meanwhile.
CREATE TABLE open (
    record text PRIMARY KEY,
    kind text NOT NULL,
    unit text NOT NULL,
    labels jsonb NOT NULL,
    cause text NOT NULL,
    last_seen timestamptz NOT NULL,
    offline_since timestamptz NOT NULL,
    detected_at timestamptz NOT NULL,
    partition int NOT NULL
);

-- A closing has all that its opening has.
CREATE VIEW outages AS
SELECT record, kind, unit, labels, cause, last_seen, offline_since, detected_at, at AS back_at, closed_by
FROM transitions WHERE transition = 'online'
UNION ALL
SELECT record, kind, unit, labels, cause, last_seen, offline_since, detected_at, NULL, NULL FROM open
WHERE NOT EXISTS (SELECT FROM transitions closed WHERE closed.record = open.record
    AND closed.transition = 'online' AND closed.detected_at = open.detected_at);

-- Time in which Rollcall did not hear a kind, or, with an empty kind, all of the fleet.
CREATE TABLE blind (
    kind text NOT NULL,
    from_at timestamptz NOT NULL,
    until_at timestamptz NOT NULL,
    PRIMARY KEY (kind, from_at)
);
CREATE INDEX blind_until ON blind (until_at);

-- The changes that operators made.
CREATE TABLE operations (
    at timestamptz NOT NULL,
    id text NOT NULL,
    author text NOT NULL,
    change text NOT NULL,
    subject text NOT NULL,
    kind text,
    unit text,
    text text NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX operations_at ON operations (at);
CREATE INDEX operations_unit ON operations (kind, unit, at);

-- The timeout and the grace of each kind, from a moment until the next one.
CREATE TABLE policies (
    kind text NOT NULL,
    since timestamptz NOT NULL,
    timeout_ms bigint NOT NULL,
    grace_ms bigint NOT NULL,
    PRIMARY KEY (kind, since)
);

-- The attempts to notify receivers.
CREATE TABLE notifications (
    at timestamptz NOT NULL,
    notification text NOT NULL,
    receiver text NOT NULL,
    attempt int NOT NULL,
    result text NOT NULL,
    took_ms bigint NOT NULL,
    answer text NOT NULL,
    group_key text NOT NULL,
    group_labels jsonb NOT NULL,
    sealed_at timestamptz NOT NULL,
    offline int NOT NULL,
    online int NOT NULL,
    records text[] NOT NULL,
    is_reminder boolean NOT NULL,
    PRIMARY KEY (notification, receiver, attempt, at)
) PARTITION BY RANGE (at);
CREATE INDEX notifications_at ON notifications USING brin (at);
CREATE INDEX notifications_receiver ON notifications (receiver, at);

-- The units of the fleet, as of the last time that history looked. A unit that was removed and is back has a row for
-- each of its times in the fleet.
CREATE TABLE units (
    kind text NOT NULL,
    unit text NOT NULL,
    labels jsonb NOT NULL,
    known_since timestamptz NOT NULL,
    removed_at timestamptz,
    partition int NOT NULL,
    PRIMARY KEY (kind, unit, known_since)
);
CREATE INDEX units_partition ON units (partition);

-- Planned absences of units.
CREATE TABLE pauses (
    kind text NOT NULL,
    unit text NOT NULL,
    from_at timestamptz NOT NULL,
    until_at timestamptz NOT NULL,
    PRIMARY KEY (kind, unit, from_at)
);
CREATE INDEX pauses_until ON pauses (until_at);

-- Sums of a day (UTC): of the fleet, each kind and each label value, and of each unit that was not online all day.
CREATE TABLE daily (
    day date NOT NULL,
    scope text NOT NULL,
    name text NOT NULL,
    units int NOT NULL,
    online_seconds double precision NOT NULL,
    offline_seconds double precision NOT NULL,
    blind_seconds double precision NOT NULL,
    paused_seconds double precision NOT NULL,
    unknown_seconds double precision NOT NULL,
    outages int NOT NULL,
    longest_seconds double precision NOT NULL,
    PRIMARY KEY (day, scope, name)
) PARTITION BY RANGE (day);
CREATE INDEX daily_name ON daily (scope, name, day);
