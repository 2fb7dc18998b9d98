-- History of a fleet, schema 1. The tables are public: see docs/history.md.

CREATE TABLE meta (version int NOT NULL, made_at timestamptz NOT NULL DEFAULT now());
INSERT INTO meta (version) VALUES (1);

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

-- The records that are open.
CREATE TABLE open (
    record text PRIMARY KEY,
    kind text NOT NULL,
    unit text NOT NULL,
    detected_at timestamptz NOT NULL,
    partition int NOT NULL
);

CREATE VIEW outages AS
SELECT opened.record, opened.kind, opened.unit, opened.labels, opened.cause, opened.last_seen,
       opened.offline_since, opened.detected_at, closed.at AS back_at, closed.closed_by
FROM transitions opened
LEFT JOIN transitions closed ON closed.record = opened.record AND closed.transition = 'online'
    AND closed.detected_at = opened.at
WHERE opened.transition = 'offline';

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

-- The units of the fleet at their last refresh.
CREATE TABLE units (
    kind text NOT NULL,
    unit text NOT NULL,
    labels jsonb NOT NULL,
    known_since timestamptz NOT NULL,
    removed_at timestamptz,
    partition int NOT NULL,
    PRIMARY KEY (kind, unit)
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
