-- What one would write by hand in an afternoon, by DuckDB from the same journals: requests with their calls and
-- executions, the broken promises that need no history of nodes, and objectives by minute. It keeps no records,
-- sets no line aside, and knows of no clock that is wrong and no file that comes twice.
SET TimeZone = 'UTC';

CREATE TABLE records AS
SELECT kind, pair, client, number, service, outcome, "at", total_us,
    coalesce(deliveries, 1) AS deliveries, coalesce(is_repeated, false) AS is_repeated, reply_crc
FROM read_json(getvariable('journals'), format = 'newline_delimited', ignore_errors = true, columns = {
    kind: 'VARCHAR', pair: 'VARCHAR', client: 'VARCHAR', number: 'BIGINT', service: 'VARCHAR', outcome: 'VARCHAR',
    "at": 'BIGINT', total_us: 'BIGINT', deliveries: 'BIGINT', is_repeated: 'BOOLEAN', reply_crc: 'BIGINT'})
WHERE kind IN ('request', 'call', 'execution');

CREATE TABLE requests AS
SELECT pair, client, number, any_value(service) AS service,
    count(*) FILTER (kind = 'request' AND outcome IN ('answered', 'failed')) AS answers,
    count(*) FILTER (kind = 'execution') AS executions,
    count(*) FILTER (kind = 'execution' AND NOT is_repeated) AS unmarked,
    count(*) FILTER (kind = 'call') AS calls,
    any_value(outcome) FILTER (kind = 'call') AS call_outcome,
    any_value(reply_crc) FILTER (kind = 'call') AS reply_crc,
    list(reply_crc) FILTER (kind = 'execution') AS execution_crcs,
    max("at") AS ended_at_us, max(total_us) FILTER (kind = 'call') AS total_us
FROM records GROUP BY ALL;

CREATE TABLE audit AS
SELECT pair, rule, count(*) AS requests
FROM (
    SELECT pair, unnest([
        CASE WHEN calls = 0 OR (call_outcome = 'timeout' AND answers > 0) THEN 'lost' END,
        CASE WHEN unmarked > 1 THEN 'executed-twice' END,
        CASE WHEN answers > 1 THEN 'answered-twice' END,
        CASE WHEN NOT list_contains(execution_crcs, reply_crc) THEN 'crossed' END]) AS rule
    FROM requests)
WHERE rule IS NOT NULL GROUP BY ALL;

CREATE TABLE objectives AS
SELECT pair, service, ended_at_us // 60000000 AS minute, count(*) AS requests,
    count(*) FILTER (coalesce(call_outcome, '') NOT IN ('answered', 'failed')) AS errors,
    quantile_cont(total_us, [0.5, 0.95, 0.99]) AS percentiles_us
FROM requests GROUP BY ALL;

COPY requests TO 'requests.parquet';
COPY audit TO 'audit.parquet';
COPY objectives TO 'objectives.parquet';
