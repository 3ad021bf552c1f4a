//! The promise of a release: public functions and views only grow.

use std::fs;
use std::path::Path;

use webhook_e2e::Cluster;
use webhook_e2e::released::{broken_promises, list};
use webhook_e2e::scripts;

const REMEDY: &str = "\
people call these functions and read these views by their names and positions. Keep what is released: give a new parameter \
a default and put it last, put a new column last, or choose a new name. Only for a version that is not released yet, \
`make api` writes its list anew";

#[test]
fn released_functions_and_views_only_grow() {
    let now = list(&Cluster::shared().database("released"));
    let files = fs::read_dir(env!("CARGO_MANIFEST_DIR")).unwrap();
    let files = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let files: Vec<String> = files.filter(|name| name.starts_with("api-")).collect();
    // `make freeze` writes both.
    assert_eq!(
        files.is_empty(),
        scripts::releases().is_empty(),
        "{files:?}"
    );
    for name in files {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&name);
        let released = fs::read_to_string(path).unwrap();
        assert!(released.contains("function webhook_emit\n"), "{name}");
        let broken = broken_promises(&released, &now);
        assert_eq!(broken, Vec::<String>::new(), "{name}: {REMEDY}");
    }
}

const RELEASED: &str = "\
function webhook_count
    returns setof record
    parameter endpoint text
    parameter since timestamp with time zone default
    result name text
    result amount bigint
procedure webhook_sweep
    parameter endpoint text
view webhook.code
    column kind text
    column code text
";

#[test]
fn what_grows_at_its_end_keeps_the_promise() {
    for (before, after) in [
        ("", ""),
        (
            "procedure",
            "function webhook_new\n    returns uuid\nprocedure",
        ),
        ("view", "    parameter limit integer default\nview"),
        (
            "amount bigint\n",
            "amount bigint\n    result share double precision\n",
        ),
        ("code text\n", "code text\n    column meaning text\n"),
        ("parameter endpoint text", "parameter endpoint text default"),
        // Another function of the same name.
        (
            "procedure",
            "function webhook_count\n    returns void\n    parameter payload json\nprocedure",
        ),
    ] {
        let now = RELEASED.replacen(before, after, 1);
        assert_eq!(
            broken_promises(RELEASED, &now),
            Vec::<String>::new(),
            "{now}"
        );
    }
}

#[test]
fn whatever_is_taken_away_or_changed_breaks_it() {
    for (before, after, told) in [
        (
            "view webhook.code",
            "view webhook.codes",
            "view webhook.code is gone",
        ),
        ("    column code text\n", "", "column code text is gone"),
        (
            "column kind text\n    column code text",
            "column code text\n    column kind text",
            "is code text now",
        ),
        ("column code text", "column code name", "is code name now"),
        ("setof record", "record", "is record now"),
        ("amount bigint", "amount integer", "is amount integer now"),
        (
            "    parameter endpoint text\n",
            "",
            "parameter endpoint text is",
        ),
        (
            "parameter endpoint",
            "parameter address",
            "is address text now",
        ),
        (" default", "", "is since timestamp with time zone now"),
        (
            "view",
            "    parameter limit integer\nview",
            "limit integer has no default",
        ),
        (
            "procedure webhook_sweep",
            "function webhook_sweep",
            "procedure webhook_sweep is gone",
        ),
    ] {
        let now = RELEASED.replacen(before, after, 1);
        assert_ne!(now, RELEASED);
        let broken = broken_promises(RELEASED, &now);
        assert!(
            broken.len() == 1 && broken[0].contains(told),
            "{now}{broken:?}"
        );
    }
}
