//! `make bench`: the rates of the extension, beside other systems and under the conditions that it promises to bear.
//!
//! ```text
//! webhook-bench [SECTION ..] [--system NAME ..] [--quick] [--events N] [--rounds N] [--limit S]
//!               [--pinned S] [--flow S] [--results DIR]
//! ```
//!
//! A section is a measurement; without one all are run. docs/performance.md tells what each figure means.

mod chart;
mod comparison;
mod counting;
mod drain;
mod emit;
mod fairness;
mod flow;
mod idle;
mod latency;
mod many;
mod measure;
mod options;
mod peer;
mod pinned;
mod redis;
mod relay;
mod report;
mod retention;
mod rows;
mod sink;
mod systems;

use options::Options;
use report::Figure;

type Section = fn(&Options) -> Vec<Figure>;

const SECTIONS: [(&str, Section); 11] = [
    ("comparison", comparison::run),
    ("fairness", fairness::run),
    ("pinned", pinned::run),
    ("rows", rows::run),
    ("many", many::run),
    ("counting", counting::run),
    ("idle", idle::run),
    ("latency", latency::run),
    ("relay", relay::run),
    ("emit", emit::run),
    ("retention", retention::run),
];

fn main() {
    let options = Options::from_arguments(&SECTIONS.map(|(name, _)| name));
    let chosen = SECTIONS.iter().filter(|(name, _)| options.wants(name));
    let mut figures = Vec::new();
    for (name, run) in chosen {
        let of_section = run(&options);
        report::write(&options, name, &report::table(&of_section));
        figures.extend(of_section);
    }
    println!("\n{}", report::table(&figures));
    println!("Written to {}", options.results.display());
}
