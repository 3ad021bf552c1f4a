//! What differs between the versions of PostgreSQL.

use pgrx::pg_sys;

/// This process's place in the server's array of processes.
pub fn my_proc_number() -> i32 {
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    // SAFETY: a process that runs our code has its PGPROC.
    unsafe {
        (*pg_sys::MyProc).pgprocno
    }
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    // SAFETY: a plain read, on the main thread.
    unsafe {
        pg_sys::MyProcNumber
    }
}

pub fn owns_database(database: pg_sys::Oid) -> bool {
    // SAFETY: a catalog lookup inside the transaction of the command at hand.
    unsafe {
        let role = pg_sys::GetUserId();
        #[cfg(feature = "pg15")]
        return pg_sys::pg_database_ownercheck(database, role);
        #[cfg(not(feature = "pg15"))]
        return pg_sys::object_ownercheck(pg_sys::DatabaseRelationId, database, role);
    }
}

// The server's functions themselves: pgrx's wrappers set up an error frame, which a handler must not.
unsafe extern "C-unwind" {
    fn die(signal: i32);
    #[allow(non_snake_case)]
    fn SignalHandlerForConfigReload(signal: i32);
}

/// Postgres's own handlers: `die` also ends a wait for a lock or for a replica, and the reload flag is the
/// one that other code of the server looks at.
pub fn attach_signal_handlers() {
    #[cfg(not(feature = "pg18"))]
    use pg_sys::pqsignal as attach;
    #[cfg(feature = "pg18")]
    use pg_sys::pqsignal_be as attach;

    // SAFETY: the handlers are the server's and do only what is safe in a handler.
    unsafe {
        attach(pg_sys::SIGHUP as i32, Some(SignalHandlerForConfigReload));
        attach(pg_sys::SIGTERM as i32, Some(die));
        pg_sys::BackgroundWorkerUnblockSignals();
    }
}
