-- Nobody gets anything that the administrator did not give.

REVOKE ALL ON SCHEMA webhook FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA webhook FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA webhook FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA webhook FROM PUBLIC;

REVOKE ALL ON FUNCTION @extschema@.webhook_emit FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.webhook_add_endpoint FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.webhook_remove_endpoint FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.webhook_secret FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.webhook_copy_policy FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.webhook_adopt FROM PUBLIC;
REVOKE ALL ON FUNCTION @extschema@.webhook_status FROM PUBLIC;
