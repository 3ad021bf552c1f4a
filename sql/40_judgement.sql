-- Judging: the meaning of an attempt's end for its delivery. An outcome is judged here, once; the queue, the breaker, the log,
-- the counters and the alerts read this row.
--
-- `failure` is the code of an attempt without an answer, or 'released' if the worker gives its claim back. These are
-- expressions that the planner inlines: a call for each outcome would double the cost of a success.

-- The code of an outcome that is no success. If a status was read, the code is 'status', whatever came after it.
CREATE OR REPLACE FUNCTION webhook.reason_of(status_code int, failure text) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN CASE WHEN status_code IS NOT NULL THEN 'status' WHEN failure <> 'released' THEN failure END;

CREATE OR REPLACE FUNCTION webhook.judgement(
    verdict text, p webhook.policy, attempts int, max_attempts int, status_code int, failure text, retry_after_s float8,
    ended_at timestamptz, draw float8) RETURNS webhook.judgement
    LANGUAGE sql STABLE
    RETURN ROW(
        verdict,
        CASE WHEN verdict = 'success' THEN 'SENT'
             WHEN verdict = 'release' OR (verdict = 'retry' AND attempts < max_attempts) THEN 'PENDING'
             ELSE 'FAILED' END,
        -- A delivery whose claim is given back keeps the time that it had. After local trouble of the sender it waits for a
        -- second, so that the sender does not spin.
        CASE WHEN verdict = 'release' AND failure = 'local' THEN ended_at + interval '1 s'
             WHEN verdict = 'retry' AND attempts < max_attempts
             THEN ended_at + webhook.backoff_delay(
                 p, attempts, CASE WHEN status_code IN (429, 503) THEN make_interval(secs => retry_after_s) END, draw) END,
        CASE WHEN verdict <> 'success' THEN webhook.reason_of(status_code, failure) END
    )::webhook.judgement;

-- `draw`, between 0 and 1, places the delay within the jitter.
CREATE OR REPLACE FUNCTION webhook.judge(
    p webhook.policy, attempts int, max_attempts int, status_code int, failure text, retry_after_s float8,
    ended_at timestamptz, draw float8) RETURNS webhook.judgement
    LANGUAGE sql STABLE
    RETURN webhook.judgement(webhook.verdict(p, status_code, failure), p, attempts, max_attempts, status_code, failure,
                             retry_after_s, ended_at, draw);

CREATE OR REPLACE FUNCTION webhook.judge_late(p webhook.policy, status_code int, failure text) RETURNS webhook.judgement
    LANGUAGE sql IMMUTABLE
    RETURN ROW('late', NULL, NULL, CASE WHEN webhook.verdict(p, status_code, failure) <> 'success'
                                        THEN webhook.reason_of(status_code, failure) END)::webhook.judgement;
