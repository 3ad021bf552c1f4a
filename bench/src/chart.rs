//! Bars as SVG, drawn by hand: they are read on a light page and on a dark one.

use crate::report::number;

pub struct Panel {
    pub title: String,
    pub bars: Vec<Bar>,
}

pub struct Bar {
    pub name: String,
    pub value: f64,
    pub is_ours: bool,
    /// Not a system but what is possible at most.
    pub is_ceiling: bool,
}

const WIDTH: f64 = 760.0;
const NAMES: f64 = 150.0;
const FIGURES: f64 = 70.0;
const BAR: f64 = 18.0;
const ROW: f64 = 26.0;
const TITLE: f64 = 34.0;
const TOP: f64 = 40.0;

const STYLE: &str = "
  text { font: 13px system-ui, sans-serif; fill: #1f2328; }
  .title { font-size: 16px; font-weight: 600; }
  .panel { font-weight: 600; }
  .other { fill: #8c959f; }
  .ours { fill: #2f81f7; }
  .ceiling { fill: none; stroke: #8c959f; stroke-dasharray: 4 3; }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .other { fill: #6e7681; } }
";

/// Each panel has a scale of its own.
pub fn draw(title: &str, panels: &[Panel]) -> String {
    let mut y = TOP;
    let mut shapes = format!(
        "<text class=\"title\" x=\"0\" y=\"18\">{}</text>\n",
        escaped(title)
    );
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
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {y:.0}\" width=\"{WIDTH:.0}\" height=\"{y:.0}\" role=\"img\">\n\
         <title>{}</title>\n<style>{STYLE}</style>\n{shapes}</svg>\n",
        escaped(title)
    )
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

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;");
    text.replace('<', "&lt;").replace('>', "&gt;")
}
