//! The session that does the work, and the server's errors as text.

use std::future::poll_fn;

use tokio_postgres::error::DbError;
use tokio_postgres::{AsyncMessage, Client};

use crate::session::described;
use crate::target::Target;

/// The script means the same whatever the server, the database and the role have set. Each transaction repeats this,
/// since a pooler may have another session for it. The owner of the database may have set a role for its sessions.
pub const PREPARE: &str = "
    SET ROLE NONE;
    SET search_path = pg_catalog, pg_temp;
    SET standard_conforming_strings = on;
    SET transform_null_equals = off;
    SET array_nulls = on;
    SET datestyle = ISO;
    SET intervalstyle = postgres;
    SET check_function_bodies = on;
    SET statement_timeout = 0;
    SET lock_timeout = '30s';
    SET client_min_messages = warning;
    SET default_tablespace = '';
    SET default_table_access_method = heap;
    SET jit = off";

/// Prints warnings of the server as they come.
pub async fn connect(target: &Target) -> Result<Client, String> {
    let begun = target.config.connect(target.tls.clone()).await;
    let told = |error: tokio_postgres::Error| format!("{}: {}", target.name, described(&error));
    let (client, mut connection) = begun.map_err(told)?;
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notice(notice) = message {
                eprintln!("{}:  {}", notice.severity(), in_full(&notice));
            }
        }
    });
    client.batch_execute(PREPARE).await.map_err(refused)?;
    Ok(client)
}

pub fn refused(error: tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(error) => in_full(error),
        None => described(&error),
    }
}

fn in_full(error: &DbError) -> String {
    let mut text = error.message().to_owned();
    for (name, more) in [("DETAIL", error.detail()), ("HINT", error.hint())] {
        if let Some(more) = more {
            text += &format!("\n{name}:  {more}");
        }
    }
    text
}
