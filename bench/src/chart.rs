//! Bars.

use webhook_e2e::svg::{self, WIDTH, escaped};

use crate::report::number;

pub struct Panel {
    pub title: String,
    pub bars: Vec<Bar>,
}

pub struct Bar {
    pub name: String,
    pub value: f64,
    pub is_ours: bool,
    /// Whether it is no system, but the ceiling of all.
    pub is_ceiling: bool,
}

const NAMES: f64 = 150.0;
const FIGURES: f64 = 70.0;
const BAR: f64 = 18.0;
const ROW: f64 = 26.0;
const TITLE: f64 = 34.0;
const TOP: f64 = 40.0;

/// Each panel has a scale of its own.
pub fn draw(title: &str, panels: &[Panel]) -> String {
    let mut y = TOP;
    let mut shapes = String::new();
    for panel in panels {
        let text = escaped(&panel.title);
        shapes += &format!(
            "<text class=\"panel\" x=\"0\" y=\"{:.0}\">{text}</text>\n",
            y + 16.0
        );
        y += TITLE - 8.0;
        let most = panel.bars.iter().map(|bar| bar.value).fold(1.0, f64::max);
        for bar in &panel.bars {
            shapes += &drawn(bar, y, most);
            y += ROW;
        }
        y += 10.0;
    }
    svg::page(title, y, &shapes)
}

fn drawn(bar: &Bar, y: f64, most: f64) -> String {
    let class = match bar {
        Bar { is_ours: true, .. } => "ours",
        Bar {
            is_ceiling: true, ..
        } => "ceiling",
        _ => "other",
    };
    let length = (WIDTH - NAMES - FIGURES) * bar.value / most;
    let baseline = y + BAR - 5.0;
    format!(
        "<text x=\"{:.0}\" y=\"{baseline:.0}\" text-anchor=\"end\">{}</text>\n\
         <rect class=\"{class}\" x=\"{NAMES:.0}\" y=\"{y:.0}\" width=\"{:.1}\" height=\"{BAR:.0}\" rx=\"2\"/>\n\
         <text x=\"{:.1}\" y=\"{baseline:.0}\">{}</text>\n",
        NAMES - 8.0,
        escaped(&bar.name),
        length.max(1.0),
        NAMES + length + 6.0,
        number(bar.value)
    )
}
