-- An upgrade may bring functions, tables and views that a level of webhook_grant() has: roles that had the level get them.
SELECT webhook.renew_grants();
