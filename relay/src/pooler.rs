//! A pooler of transactions is refused: a sender holds locks, and its statements must all run in the session that has
//! them.
//!
//! Such a pooler lends a server connection for a transaction. Some lend each in turn: then the next statement has
//! another backend. Others lend the connection first that came back last: then a second connection of ours, which
//! holds a transaction open, has got the backend that has just answered the first, or the first now gets another.
//! Nothing has been set by then: settings would stay behind in the pool.

use webhook_engine::Trouble;

use crate::session::Session;

const FEATURE_NOT_SUPPORTED: &str = "0A000";
const CHANGED: &str = "Two statements of one connection had two backends.";

pub fn refuse(
    first: &Session,
    open_second: impl FnOnce() -> Result<Session, Trouble>,
) -> Result<(), Trouble> {
    let backend = first.backend()?;
    if first.backend()? != backend {
        return Err(refusal(CHANGED));
    }
    // A role may be limited to one connection. SQL then still refuses a sender whose session is another
    // (take_shares()).
    let Ok(second) = open_second() else {
        return Ok(());
    };
    match second.execute("BEGIN") {
        // The pool has sessions and no other connection.
        Err(_) if second.is_given_up() => return Ok(()),
        begun => begun?,
    }
    if second.backend()? == backend {
        return Err(refusal("Two connections at the same time had one backend."));
    }
    if first.backend()? != backend {
        return Err(refusal(
            "Two statements of one connection had two backends.",
        ));
    }
    Ok(())
}

fn refusal(detail: &str) -> Trouble {
    let message = format!(
        "the connection goes through a pooler of transactions\n\
         DETAIL:  {detail} A sender holds locks, which belong to its session.\n\
         HINT:  Connect to the server itself, or to a pool of sessions (pool_mode = session)."
    );
    Trouble::new(FEATURE_NOT_SUPPORTED, message)
}
