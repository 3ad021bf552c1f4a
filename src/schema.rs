//! The install script: the files of `sql/`, in the order of the lifecycle.

use pgrx::prelude::*;

extension_sql_file!("../sql/tables.sql", name = "tables", bootstrap);
extension_sql_file!("../sql/native.sql", name = "native", requires = ["tables"]);
extension_sql_file!(
    "../sql/installation.sql",
    name = "installation",
    requires = ["native"]
);
extension_sql_file!(
    "../sql/presets.sql",
    name = "presets",
    requires = ["installation"]
);
extension_sql_file!("../sql/policy.sql", name = "policy", requires = ["presets"]);
extension_sql_file!("../sql/moves.sql", name = "moves", requires = ["policy"]);
extension_sql_file!("../sql/match.sql", name = "match", requires = ["moves"]);
extension_sql_file!(
    "../sql/endpoint.sql",
    name = "endpoint",
    requires = ["match"]
);
extension_sql_file!(
    "../sql/secrets.sql",
    name = "secrets",
    requires = ["endpoint"]
);
extension_sql_file!("../sql/emit.sql", name = "emit", requires = ["secrets"]);
extension_sql_file!("../sql/watch.sql", name = "watch", requires = ["emit"]);
extension_sql_file!("../sql/breaker.sql", name = "breaker", requires = ["watch"]);
extension_sql_file!(
    "../sql/parking.sql",
    name = "parking",
    requires = ["breaker"]
);
extension_sql_file!("../sql/claim.sql", name = "claim", requires = ["parking"]);
extension_sql_file!("../sql/metrics.sql", name = "metrics", requires = ["claim"]);
extension_sql_file!("../sql/settle.sql", name = "settle", requires = ["metrics"]);
extension_sql_file!(
    "../sql/recover.sql",
    name = "recover",
    requires = ["settle"]
);
extension_sql_file!("../sql/adopt.sql", name = "adopt", requires = ["recover"]);
extension_sql_file!("../sql/manual.sql", name = "manual", requires = ["adopt"]);
extension_sql_file!(
    "../sql/ordering.sql",
    name = "ordering",
    requires = ["manual"]
);
extension_sql_file!(
    "../sql/coalescing.sql",
    name = "coalescing",
    requires = ["ordering"]
);
extension_sql_file!(
    "../sql/dead_letter.sql",
    name = "dead_letter",
    requires = ["coalescing"]
);
extension_sql_file!(
    "../sql/retention.sql",
    name = "retention",
    requires = ["dead_letter"]
);
extension_sql_file!(
    "../sql/status.sql",
    name = "status",
    requires = ["retention"]
);
extension_sql_file!(
    "../sql/operate.sql",
    name = "operate",
    requires = ["status"]
);
extension_sql_file!("../sql/alerts.sql", name = "alerts", requires = ["operate"]);
extension_sql_file!(
    "../sql/preview.sql",
    name = "preview",
    requires = ["alerts"]
);
extension_sql_file!("../sql/why.sql", name = "why", requires = ["preview"]);
extension_sql_file!(
    "../sql/privileges.sql",
    name = "privileges",
    requires = ["why"]
);
extension_sql_file!("../sql/api.sql", name = "api", requires = ["privileges"]);
extension_sql_file!(
    "../sql/ownership.sql",
    name = "ownership",
    requires = ["api"]
);
extension_sql_file!(
    "../sql/start.sql",
    name = "start",
    requires = ["ownership"],
    finalize
);
