//! Format strings with placeholders: `{}`, `{0}` and `{name}`.

/// A placeholder: the position or the name of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Place<'a> {
    Number(usize),
    Name(&'a str),
}

impl Place<'_> {
    /// Returns the index of the placeholder's value among these names.
    pub fn among(self, names: &[&str]) -> Option<usize> {
        match self {
            Place::Number(i) => Some(i).filter(|i| *i < names.len()),
            Place::Name(name) => names.iter().position(|n| *n == name),
        }
    }
}

/// Fills the placeholders; `{{` and `}}` are literal braces. A placeholder without a value stays unchanged.
pub(crate) fn fill(format: &str, mut value: impl FnMut(Place<'_>) -> Option<String>) -> String {
    let mut out = String::new();
    let mut count = 0;
    let mut remaining = format;
    while let Some(start) = remaining.find(['{', '}']) {
        out.push_str(&remaining[..start]);
        let (brace, after) = remaining[start..].split_at(1);
        // A doubled brace stands for itself, and so does a brace without a partner.
        if after.starts_with(brace) {
            out.push_str(brace);
            remaining = &after[1..];
            continue;
        }
        let Some(end) = after.find('}').filter(|_| brace == "{") else {
            out.push_str(brace);
            remaining = after;
            continue;
        };
        let place = match after[..end].trim() {
            "" => {
                count += 1;
                Place::Number(count - 1)
            }
            name => name.parse().map_or(Place::Name(name), Place::Number),
        };
        match value(place) {
            Some(value) => out.push_str(&value),
            None => out.push_str(&remaining[start..start + end + 2]),
        }
        remaining = &after[end + 1..];
    }
    out + remaining
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_filled_with_values() {
        let values = ["1", "2"];
        let text =
            fill("{} and {}, {1} {x} {{y}} {none} }{", |place| place.among(&["x", "y"]).map(|i| values[i].to_owned()));
        assert_eq!(text, "1 and 2, 2 1 {y} {none} }{");
    }
}
