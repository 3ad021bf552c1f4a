//! The rights that the work takes: those that the role gives itself and takes back in the same transaction, and those
//! that only an administrator can give.

use super::findings::Findings;
use crate::script::identifier;

#[derive(Default)]
pub struct Rights {
    /// Statements around the work.
    pub before: Vec<String>,
    pub after: Vec<String>,
    /// Statements for an administrator.
    of_others: Vec<String>,
}

impl Rights {
    /// The right to act as the owner, who may not exist yet.
    pub fn to_be_owner(found: &Findings, owner: &str) -> Rights {
        let mut rights = Rights::default();
        let (owner, me) = (identifier(owner), identifier(&found.me));
        if !found.has_owner {
            let make = format!("CREATE ROLE {owner} NOLOGIN;");
            rights.need(found.makes_roles, make, None);
        }
        if !found.is_member {
            let options = match found.splits_membership {
                true => " WITH INHERIT TRUE, SET TRUE",
                false => "",
            };
            let give = format!("GRANT {owner} TO {me}{options};");
            let take = format!("REVOKE {owner} FROM {me};");
            rights.need(found.gives_membership, give, Some(take));
        }
        rights
    }

    pub fn and_to_make_schemas(mut self, found: &Findings) -> Rights {
        if !found.makes_schemas {
            let (database, me) = (identifier(&found.database), identifier(&found.me));
            let give = format!("GRANT CREATE ON DATABASE {database} TO {me};");
            self.need(false, give, None);
        }
        self
    }

    /// The right to rename a schema of the owner, which takes a membership that is inherited.
    pub fn and_to_rename(mut self, found: &Findings, owner: &str) -> Rights {
        let (owner, me) = (identifier(owner), identifier(&found.me));
        let is_given_here = !found.is_member && found.splits_membership;
        if !found.inherits && !is_given_here {
            let give = match found.splits_membership {
                true => format!("GRANT {owner} TO {me} WITH INHERIT TRUE;"),
                false => format!("ALTER ROLE {me} INHERIT;"),
            };
            self.need(false, give, None);
        }
        self
    }

    /// The owner's right to make the functions that users call, which are in schema public.
    pub fn and_to_public(mut self, found: &Findings, owner: &str) -> Rights {
        let owner = identifier(owner);
        if !found.owner_has_public {
            let give = format!("GRANT CREATE ON SCHEMA public TO {owner};");
            let take = format!("REVOKE CREATE ON SCHEMA public FROM {owner};");
            self.need(found.gives_public, give, Some(take));
        }
        self
    }

    /// Prints the statements for an administrator if there are any.
    pub fn require(&self, found: &Findings) -> Result<(), String> {
        if self.of_others.is_empty() {
            return Ok(());
        }
        println!("{}", self.of_others.join("\n"));
        Err(format!(
            "role \"{}\" may not do this alone, and nothing was changed: \
             have an administrator execute the statements above in database \"{}\", and try again",
            found.me, found.database
        ))
    }

    fn need(&mut self, is_allowed: bool, give: String, take: Option<String>) {
        if is_allowed {
            self.before.push(give);
            self.after.extend(take);
        } else {
            self.of_others.push(give);
        }
    }
}
