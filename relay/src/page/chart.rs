//! Charts, as SVG without scripts: colours are classes of page.css, and each chart describes itself in words.

use std::fmt::Write;

use super::html::escaped;
use super::words;

const MINUTES: usize = 60;

/// Deliveries sent and attempts failed in each of the last 60 minutes.
pub struct Hour {
    sent: [f64; MINUTES],
    failed: [f64; MINUTES],
}

impl Hour {
    /// Reads `[[minute, sent, failed], ..]`.
    pub fn read(minutes: &serde_json::Value) -> Hour {
        let mut hour = Hour {
            sent: [0.0; MINUTES],
            failed: [0.0; MINUTES],
        };
        for minute in minutes.as_array().into_iter().flatten() {
            let place = minute[0]
                .as_u64()
                .and_then(|place| usize::try_from(place).ok());
            if let Some(place) = place.filter(|place| *place < MINUTES) {
                hour.sent[place] = minute[1].as_f64().unwrap_or_default();
                hour.failed[place] = minute[2].as_f64().unwrap_or_default();
            }
        }
        hour
    }

    pub fn sent(&self) -> f64 {
        self.sent.iter().sum()
    }

    pub fn failed(&self) -> f64 {
        self.failed.iter().sum()
    }

    fn highest(&self) -> f64 {
        let both = self.sent.iter().zip(&self.failed);
        both.map(|(sent, failed)| sent + failed).fold(0.0, f64::max)
    }

    fn in_words(&self) -> String {
        format!(
            "{} sent and {} failed in the last hour, at most {} in a minute",
            words::number(self.sent()),
            words::counted(self.failed(), "attempt", "attempts"),
            words::number(self.highest())
        )
    }

    /// One path for each of the two, stacked: `step` wide, `height` high for `top`.
    fn bars(&self, step: f64, height: f64, top: f64) -> String {
        let (mut sent, mut failed) = (String::new(), String::new());
        let width = step - (step / 4.0).clamp(0.5, 2.0);
        // A single delivery is seen too.
        let high = |number: f64| match number > 0.0 {
            true => (number / top * height).max(1.0),
            false => 0.0,
        };
        for minute in 0..MINUTES {
            let x = minute as f64 * step;
            let (of_sent, of_failed) = (high(self.sent[minute]), high(self.failed[minute]));
            if of_sent > 0.0 {
                let y = height - of_sent;
                let _ = write!(sent, "M{x:.1} {y:.1}h{width:.1}v{of_sent:.1}h-{width:.1}z");
            }
            if of_failed > 0.0 {
                let y = (height - of_sent - of_failed).max(0.0);
                let _ = write!(
                    failed,
                    "M{x:.1} {y:.1}h{width:.1}v{of_failed:.1}h-{width:.1}z"
                );
            }
        }
        format!("<path class=\"sent\" d=\"{sent}\"/><path class=\"bad\" d=\"{failed}\"/>")
    }

    pub fn sparkline(&self) -> String {
        let (step, height) = (2.5, 26.0);
        let width = step * MINUTES as f64;
        format!(
            "<svg class=\"spark\" viewBox=\"0 0 {width} {height}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">\
             <path class=\"axis\" d=\"M0 {base}h{width}\"/>{}</svg>",
            self.in_words(),
            self.bars(step, height - 1.0, self.highest().max(1.0)),
            base = height - 0.5,
        )
    }

    /// `since` and `until` are times of day. The labels beside it have the size of other text on every screen.
    pub fn throughput(&self, since: &str, until: &str) -> String {
        let (step, height) = (10.0, 150.0);
        let width = step * MINUTES as f64;
        let top = round_up(self.highest());
        format!(
            "<div class=\"plot\"><svg class=\"chart\" viewBox=\"0 0 {width} {height}\" preserveAspectRatio=\"none\" role=\"img\" \
             aria-label=\"{}\"><path class=\"axis\" d=\"M0 .5h{width}M0 {}h{width}M0 {}h{width}\"/>{}</svg>\
             <span class=\"top\" aria-hidden=\"true\">{}</span><span class=\"half\" aria-hidden=\"true\">{}</span></div>\
             <p class=\"span\"><span>{}</span><span>{} UTC</span></p>",
            self.in_words(),
            height / 2.0,
            height - 0.5,
            self.bars(step, height, top),
            words::number(top),
            words::number(top / 2.0),
            escaped(since),
            escaped(until),
        )
    }
}

/// A bar beside its number, in a list that needs no picture to be read.
pub fn bar(share: f64) -> String {
    let width = (share * 100.0).clamp(0.0, 100.0);
    let width = if share > 0.0 { width.max(1.0) } else { 0.0 };
    format!(
        "<svg class=\"bar\" viewBox=\"0 0 100 8\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
         <rect class=\"track\" width=\"100\" height=\"8\"/><rect class=\"queue\" width=\"{width:.1}\" height=\"8\"/></svg>"
    )
}

/// Rounds up to a number that is easily halved and read.
fn round_up(highest: f64) -> f64 {
    let mut unit = 1.0;
    loop {
        for step in [2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0] {
            let top = step * unit;
            if top >= highest && top % 2.0 == 0.0 {
                return top;
            }
        }
        unit *= 10.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn minutes_outside_of_the_hour_are_not_drawn() {
        let hour = Hour::read(&json!([
            [0, 3, 1],
            [59, 2, 0],
            [60, 9, 9],
            [-1, 9, 9],
            ["x"]
        ]));
        assert_eq!(
            (hour.sent(), hour.failed(), hour.highest()),
            (5.0, 1.0, 4.0)
        );
    }

    #[test]
    fn an_axis_ends_above_its_highest_bar() {
        for (highest, top) in [
            (0.0, 2.0),
            (2.0, 2.0),
            (3.0, 4.0),
            (11.0, 20.0),
            (61.0, 80.0),
            (280.0, 300.0),
            (1500.0, 2000.0),
        ] {
            assert_eq!(round_up(highest), top);
        }
    }
}
