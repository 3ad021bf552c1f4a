//! Server processes that run unprivileged and never outlive the test process.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{self, Sender};
use std::sync::{LazyLock, Mutex};
use std::thread;

use libc::c_int;

use crate::wait;

struct User {
    uid: u32,
    gid: u32,
}

/// PostgreSQL and PgBouncer refuse to run as root: then they run as `postgres`.
static SERVICE_USER: LazyLock<Option<User>> = LazyLock::new(|| {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return None;
    }
    // SAFETY: the name is a C string, and LazyLock lets one thread at a time use getpwnam's static buffer.
    let entry = unsafe { libc::getpwnam(c"postgres".as_ptr()).as_ref() };
    let entry = entry.expect("running as root needs a user named postgres to run servers as");
    Some(User {
        uid: entry.pw_uid,
        gid: entry.pw_gid,
    })
});

/// A command that runs as the user who owns the servers.
pub fn unprivileged(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    if let Some(user) = &*SERVICE_USER {
        command.uid(user.uid).gid(user.gid);
    }
    command
}

/// Runs a command to its end, and returns its output.
#[track_caller]
pub fn complete(command: &mut Command) -> String {
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("could not run {command:?}: {error}"));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}\n{printed}");
    printed
}

/// Gives a path to the user who owns the servers.
pub fn hand_over(path: &Path) -> io::Result<()> {
    match &*SERVICE_USER {
        Some(user) => std::os::unix::fs::chown(path, Some(user.uid), Some(user.gid)),
        None => Ok(()),
    }
}

/// A running server; killed with its `quit_signal` when dropped or when the test process dies.
pub struct Process {
    child: Mutex<Child>,
    pid: c_int,
    quit_signal: c_int,
}

impl Process {
    pub fn spawn(mut command: Command, quit_signal: c_int) -> Process {
        // Ctrl-C in a terminal is for the test process, which then ends the servers.
        command.process_group(0);
        // SAFETY: prctl is async-signal-safe. The closure runs after the change of user, which would clear
        // the setting.
        unsafe {
            command.pre_exec(
                move || match libc::prctl(libc::PR_SET_PDEATHSIG, quit_signal) {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                },
            );
        }
        let description = format!("{command:?}");
        let child = spawn_from_lasting_thread(command)
            .unwrap_or_else(|error| panic!("could not run {description}: {error}"));
        Process {
            pid: child.id() as c_int,
            child: Mutex::new(child),
            quit_signal,
        }
    }

    pub fn pid(&self) -> c_int {
        self.pid
    }

    pub fn signal(&self, signal: c_int) {
        // Asking first reaps it, so that the signal cannot reach a later process with the same pid.
        if self.exit_status().is_none() {
            // SAFETY: kill has no memory preconditions, and the child has not been reaped.
            unsafe { libc::kill(self.pid, signal) };
        }
    }

    pub fn exit_status(&self) -> Option<ExitStatus> {
        let mut child = self.child.lock().unwrap();
        child.try_wait().expect("a child can be waited for")
    }

    pub fn wait(&self) -> ExitStatus {
        let awaited = format!("process {} to exit", self.pid);
        wait::until(&awaited, || self.exit_status().ok_or("running"))
    }

    pub fn quit(&self) {
        self.signal(self.quit_signal);
        // Unlike wait(), cannot panic: it runs in destructors.
        let _ = self.child.lock().unwrap().wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.quit();
    }
}

/// The death signal comes when the spawning thread ends, and test threads end early: one thread that
/// lasts as long as the process spawns all servers.
fn spawn_from_lasting_thread(command: Command) -> io::Result<Child> {
    type Order = (Command, Sender<io::Result<Child>>);
    static SPAWNER: LazyLock<Sender<Order>> = LazyLock::new(|| {
        let (sender, orders) = mpsc::channel::<Order>();
        thread::spawn(move || {
            for (mut command, reply) in orders {
                let _ = reply.send(command.spawn());
            }
        });
        sender
    });
    let (reply, spawned) = mpsc::channel();
    SPAWNER
        .send((command, reply))
        .expect("the spawner lasts as long as the process");
    spawned.recv().expect("the spawner answers every order")
}
