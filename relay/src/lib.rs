//! The host of the engine outside of the server.

mod session;

pub use session::Session;
