//! Reliable webhooks inside PostgreSQL. SQL owns the state (`sql/`), this library owns the processes, and
//! the crate `webhook-delivery` the bytes on the wire.

use pgrx::prelude::*;

mod api;
mod capture;
mod ddl_hook;
mod filter;
mod launcher;
mod memory;
mod names;
mod notice;
mod owner;
mod pg_compat;
mod routes;
mod settings;
mod shmem;
mod store;
mod told;
mod uninstall;
mod wake;
mod worker;

::pgrx::pg_module_magic!(name, version);

#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    memory::do_without_backtraces();
    settings::define();

    // SAFETY: plain reads of flags that the server sets before it loads libraries.
    let preloading =
        unsafe { pg_sys::process_shared_preload_libraries_in_progress && !pg_sys::IsBinaryUpgrade };
    if preloading {
        settings::reserve_prefix();
        shmem::reserve();
        ddl_hook::install();
        launcher::register();
    }
}
