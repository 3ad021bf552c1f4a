//! What the server, the database and the role that works allow, read from catalogs.

use tokio_postgres::{Client, Row};

use super::connection::refused;

pub struct Findings {
    /// The role that works.
    pub me: String,
    pub database: String,
    pub has_extension: bool,
    pub owner_of_schema: Option<String>,
    pub is_portable: bool,
    /// As the schema has it: not to be trusted.
    pub version: Option<String>,
    pub has_owner: bool,
    pub makes_roles: bool,
    pub is_member: bool,
    pub inherits: bool,
    pub gives_membership: bool,
    /// Whether a membership has the options INHERIT and SET.
    pub splits_membership: bool,
    pub makes_schemas: bool,
    pub gives_public: bool,
    pub owner_has_public: bool,
}

impl Findings {
    pub async fn read(client: &Client, owner: &str) -> Result<Findings, String> {
        let row = (client.query_one(include_str!("findings.sql"), &[&owner])).await;
        Findings::of(&row.map_err(refused)?).map_err(refused)
    }

    fn of(row: &Row) -> Result<Findings, tokio_postgres::Error> {
        Ok(Findings {
            me: row.try_get("me")?,
            database: row.try_get("database")?,
            has_extension: row.try_get("has_extension")?,
            owner_of_schema: row.try_get("owner_of_schema")?,
            is_portable: row.try_get("is_portable")?,
            version: row.try_get("version")?,
            has_owner: row.try_get("has_owner")?,
            makes_roles: row.try_get("makes_roles")?,
            is_member: row.try_get("is_member")?,
            inherits: row.try_get("inherits")?,
            gives_membership: row.try_get("gives_membership")?,
            splits_membership: row.try_get("splits_membership")?,
            makes_schemas: row.try_get("makes_schemas")?,
            gives_public: row.try_get("gives_public")?,
            owner_has_public: row.try_get("owner_has_public")?,
        })
    }
}
