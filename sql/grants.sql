-- Nobody gets anything that the administrator did not give.

REVOKE ALL ON SCHEMA webhook FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA webhook FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA webhook FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA webhook FROM PUBLIC;

REVOKE ALL ON FUNCTION @extschema@.webhook_emit FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.webhook_add_endpoint FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.webhook_remove_endpoint FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.webhook_secret FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.webhook_rotate_secret FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.webhook_verify FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.webhook_copy_policy FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.webhook_adopt FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.webhook_status FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.webhook_reset_breaker FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.webhook_pause FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.webhook_resume FROM PUBLIC;
REVOKE ALL ON PROCEDURE @extschema@.webhook_test FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.webhook_preview FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.webhook_why FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.webhook_replay FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.webhook_resend FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.webhook_replay_failed FROM PUBLIC;
REVOKE ALL ON PROCEDURE @extschema@.webhook_replay_all FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.webhook_discard FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.webhook_discard_failed FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.webhook_cancel FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.webhook_redact FROM PUBLIC;
REVOKE ALL ON TYPE webhook.replay, webhook.course, webhook.news FROM PUBLIC;
