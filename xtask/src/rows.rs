//! The committed lists of rows: what is asked of shardax, and the upstream cases it is compared with.

/// A heading and the rows below it.
pub struct Section<R> {
    pub title: String,
    pub rows: Vec<R>,
}

/// One thing that shardax is asked to do.
pub struct SpecRow {
    pub number: usize,
    pub kind: String,
    pub text: String,
}

/// One case of JAX's tests.
pub struct Case {
    /// `P`, `S` or `M:file`.
    pub source: String,
    pub name: String,
    pub text: String,
}

/// The sections of a list: headings stand in brackets, lines that begin with `#` are comments.
pub fn sections<R>(text: &str, row: impl Fn(&str) -> Option<R>) -> Result<Vec<Section<R>>, String> {
    let mut out: Vec<Section<R>> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(title) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            out.push(Section { title: title.to_owned(), rows: Vec::new() });
            continue;
        }
        let parsed = row(line).ok_or_else(|| format!("line {}: {line:?} is no row", i + 1))?;
        let section = out.last_mut().ok_or_else(|| format!("line {}: a row before the first section", i + 1))?;
        section.rows.push(parsed);
    }
    Ok(out)
}

/// The rows of `docs/spec-rows.txt`, numbered from 1 without gaps.
pub fn spec(text: &str) -> Result<Vec<Section<SpecRow>>, String> {
    let parsed = sections(text, |line| {
        let mut parts = line.splitn(3, ' ');
        let (number, kind, text) = (parts.next()?.parse().ok()?, parts.next()?, parts.next()?);
        Some(SpecRow { number, kind: kind.to_owned(), text: text.to_owned() })
    })?;
    let numbers = parsed.iter().flat_map(|s| &s.rows).map(|r| r.number);
    match numbers.zip(1..).find(|(number, expected)| number != expected) {
        Some((number, expected)) => Err(format!("spec-rows.txt: row {expected} is missing before row {number}")),
        None => Ok(parsed),
    }
}

/// The rows of `docs/scorecard-rows.txt`, without those that are not scored.
pub fn scorecard(text: &str) -> Result<Vec<Section<Case>>, String> {
    let (scored, _) = text.split_once("[not scored]").unwrap_or((text, ""));
    sections(scored, |line| {
        let (head, text) = line.split_once('|')?;
        let (source, name) = head.trim().split_once(' ')?;
        Some(Case { source: source.to_owned(), name: name.trim().to_owned(), text: text.trim().to_owned() })
    })
}
