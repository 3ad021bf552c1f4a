//! Errors of a call of the store.

#[derive(Debug, Clone)]
pub struct Trouble {
    /// SQLSTATE.
    pub code: String,
    pub message: String,
    /// The connection broke during the commit, so nobody knows whether the call has taken effect. Where this is
    /// false it has not.
    pub commit_unknown: bool,
}

impl Trouble {
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Trouble {
            code: code.to_owned(),
            message: message.into(),
            commit_unknown: false,
        }
    }

    /// Whether the same call, at once, will do: a person moved a row at the same moment, or cancelled us.
    pub fn is_passing(&self) -> bool {
        matches!(self.code.as_str(), "40001" | "40P01" | "57014")
    }

    /// Whether the data are at fault, or a trigger that somebody put on our tables; not the state of the server.
    pub fn is_about_data(&self) -> bool {
        ["22", "23", "P0"]
            .iter()
            .any(|class| self.code.starts_with(class))
    }

    pub fn is_out_of_memory(&self) -> bool {
        self.code == "53200"
    }

    pub fn is_lock_not_available(&self) -> bool {
        self.code == "55P03"
    }
}
