//! The chart of a soak: a line for each measure, each with a scale of its own that begins at 0.

use crate::soak::{MEASURES, Sample};
use crate::svg::{self, WIDTH, escaped};

const TOP: f64 = 40.0;
const PANEL: f64 = 96.0;
const LINE: f64 = 56.0;
const FIGURES: f64 = 90.0;

pub fn draw(title: &str, samples: &[Sample]) -> String {
    let panels = (MEASURES.iter().enumerate())
        .map(|(place, name)| panel(name, place, samples, TOP + PANEL * place as f64));
    let shapes: String = panels.collect();
    svg::page(title, TOP + PANEL * MEASURES.len() as f64, &shapes)
}

fn panel(name: &str, measure: usize, samples: &[Sample], y: f64) -> String {
    let values = samples.iter().map(|sample| sample.values[measure]);
    let most = values.clone().fold(1.0, f64::max);
    let end = (samples.last()).map_or(1.0, |sample| sample.at.as_secs_f64().max(1.0));
    let (right, base) = (WIDTH - FIGURES, y + 22.0 + LINE);
    let points = samples.iter().zip(values).map(|(sample, value)| {
        let x = right * sample.at.as_secs_f64() / end;
        format!("{x:.1},{:.1}", base - LINE * value / most)
    });
    let points: Vec<String> = points.collect();
    let last = samples.last().map_or(0.0, |sample| sample.values[measure]);
    format!(
        "<text class=\"panel\" x=\"0\" y=\"{:.0}\">{}</text>\n\
         <line class=\"axis\" x1=\"0\" y1=\"{base:.0}\" x2=\"{right:.0}\" y2=\"{base:.0}\"/>\n\
         <polyline class=\"line\" points=\"{}\"/>\n\
         <text x=\"{:.0}\" y=\"{:.0}\">{last:.0}</text>\n\
         <text x=\"{right:.0}\" y=\"{:.0}\" text-anchor=\"end\">{:.0} min</text>\n",
        y + 16.0,
        escaped(name),
        points.join(" "),
        right + 8.0,
        base - LINE * last / most + 4.0,
        base + 14.0,
        end / 60.0,
    )
}
