//! Formats numbers with units.

/// Formats bytes, such as `12.3 GB`.
pub(crate) fn bytes(n: f64) -> String {
    scaled(n, &[(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")], "B")
}

/// Formats a time, such as `1.23 ms`.
pub(crate) fn seconds(n: f64) -> String {
    scaled(n, &[(1.0, "s"), (1e-3, "ms"), (1e-6, "µs")], "s")
}

fn scaled(n: f64, units: &[(f64, &str)], smallest: &str) -> String {
    if n == 0.0 {
        return format!("0 {smallest}");
    }
    let (by, unit) = units.iter().find(|(by, _)| n.abs() >= *by).or(units.last()).copied().unwrap_or((1.0, smallest));
    let (by, unit) = if smallest == "B" && n.abs() < 1e3 { (1.0, "B") } else { (by, unit) };
    let value = n / by;
    let digits = if unit == "B" || value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_chosen_by_size() {
        assert_eq!([bytes(0.0), bytes(999.0), bytes(12_340.0), bytes(8.9e10)], ["0 B", "999 B", "12.3 kB", "89.0 GB"]);
        assert_eq!([seconds(1.5), seconds(0.012), seconds(4e-7)], ["1.50 s", "12.0 ms", "0.40 µs"]);
    }
}
