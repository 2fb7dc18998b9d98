-- Runs once, when the database of docker-compose.yml is made: the role that owns history, and a role that only reads it, for
-- Grafana. The service `secrets` makes their passwords.
\set ON_ERROR_STOP on
\set history `cat /run/history/history.password`
\set reader `cat /run/reader/reader.password`
CREATE ROLE history LOGIN PASSWORD :'history';
CREATE ROLE reader LOGIN PASSWORD :'reader';
CREATE DATABASE fleet OWNER history;
\connect fleet
-- Rollcall makes the schema, and later a table for each month.
ALTER DEFAULT PRIVILEGES FOR ROLE history GRANT USAGE ON SCHEMAS TO reader;
ALTER DEFAULT PRIVILEGES FOR ROLE history GRANT SELECT ON TABLES TO reader;
