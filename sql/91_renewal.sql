-- An upgrade may bring functions, tables and views that belong to a level: roles with the level get them.
SELECT webhook.renew_grants();
