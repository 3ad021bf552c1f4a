//! Numbers and times, as people read them.

pub fn number(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut out = String::from(if number <= -0.5 { "-" } else { "" });
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A count that ends at its limit.
pub fn count(counted: f64, more: bool) -> String {
    format!("{}{}", number(counted), if more { "+" } else { "" })
}

pub fn time(seconds: f64) -> String {
    let whole = |unit: f64| (seconds / unit).floor();
    match seconds {
        s if s < 0.0 => "0 s".to_owned(),
        s if s < 0.9995 => format!("{:.0} ms", s * 1000.0),
        s if s < 9.95 => format!("{s:.1} s"),
        s if s < 99.5 => format!("{s:.0} s"),
        // Rounded, as webhook.span_in_words() does: the reason above the table says the same.
        s if s < 3600.0 => format!("{:.0} min", s / 60.0),
        s if s < 86_400.0 => format!("{} h {} min", whole(3600.0), (whole(60.0) % 60.0)),
        _ => format!("{} d {} h", whole(86_400.0), (whole(3600.0) % 24.0)),
    }
}

/// For a time in the past or to come, where a fraction says nothing.
pub fn about(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => "1 s".to_owned(),
        s if s < 99.5 => format!("{s:.0} s"),
        s => time(s),
    }
}

pub fn bytes(bytes: f64) -> String {
    match bytes {
        b if b < 1000.0 => format!("{b:.0} B"),
        b if b < 1e6 => format!("{:.1} kB", b / 1e3),
        b if b < 1e9 => format!("{:.1} MB", b / 1e6),
        b => format!("{:.1} GB", b / 1e9),
    }
}

pub fn counted(counted: f64, one: &str, many: &str) -> String {
    format!(
        "{} {}",
        number(counted),
        if counted == 1.0 { one } else { many }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_readable() {
        assert_eq!(number(0.0), "0");
        assert_eq!(number(999.0), "999");
        assert_eq!(number(1234567.0), "1,234,567");
        assert_eq!(count(10_000.0, true), "10,000+");
        assert_eq!(time(0.24), "240 ms");
        assert_eq!(time(0.9999), "1.0 s");
        assert_eq!(time(61.0), "61 s");
        assert_eq!(time(125.0), "2 min");
        assert_eq!(time(231.0), "4 min");
        assert_eq!(time(7500.0), "2 h 5 min");
        assert_eq!(time(180_000.0), "2 d 2 h");
        assert_eq!(about(0.2), "1 s");
        assert_eq!(bytes(1500.0), "1.5 kB");
        assert_eq!(counted(1.0, "endpoint", "endpoints"), "1 endpoint");
    }
}
