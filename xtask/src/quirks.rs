//! The table of quirks in `docs/plugin.md`, from `crates/shardax/src/backend/quirks.rs`.

use std::collections::BTreeMap;
use std::path::Path;

const OPEN: &str = "<!-- quirks, written by `cargo xtask docs` -->\n";
const CLOSE: &str = "<!-- end of quirks -->";

/// Renders `docs/plugin.md` with the current table.
pub fn page(root: &Path, text: &str) -> Result<String, String> {
    let (before, rest) = text.split_once(OPEN).ok_or("docs/plugin.md has no place for quirks")?;
    let (_, after) = rest.split_once(CLOSE).ok_or("docs/plugin.md: the quirks have no end")?;
    let source = crate::read(&root.join("crates/shardax/src/backend/quirks.rs"))?;
    Ok(format!("{before}{OPEN}{}{CLOSE}{after}", table(&source)?))
}

fn table(source: &str) -> Result<String, String> {
    let constants = constants(source);
    let rows =
        source.split("    Quirk {\n").skip(1).map(|row| table_row(row, &constants)).collect::<Result<String, _>>()?;
    Ok(format!("\n| quirk | platforms | problem (plugin) | workaround | test |\n|---|---|---|---|---|\n{rows}\n"))
}

/// Returns the values of the constants that rows refer to.
fn constants(source: &str) -> BTreeMap<&str, String> {
    let declarations = source.lines().filter_map(|line| line.strip_prefix("const ")?.split_once(": &"));
    declarations
        .filter_map(|(name, text)| Some((name, text.split_once(" = ")?.1.trim_end_matches(';').to_owned())))
        .collect()
}

/// Returns a field of a row, or the value of the constant that it names.
fn field(row: &str, constants: &BTreeMap<&str, String>, name: &str) -> Result<String, String> {
    let prefix = format!("{name}: ");
    let value = row.lines().find_map(|line| line.trim().strip_prefix(&prefix)?.strip_suffix(','));
    let value = value.ok_or_else(|| format!("quirks.rs: a row has no {name} on one line"))?;
    let value = constants.get(value).map_or(value, String::as_str);
    Ok(value.trim_matches('"').to_owned())
}

fn table_row(row: &str, constants: &BTreeMap<&str, String>) -> Result<String, String> {
    let platforms = field(row, constants, "platforms")?;
    let platforms: Vec<&str> = platforms
        .trim_start_matches(['&', '['])
        .trim_end_matches(']')
        .split(", ")
        .map(|platform| platform.trim_start_matches("Platform::"))
        .filter(|platform| *platform != "Other")
        .map(|platform| match platform {
            "Cpu" => "CPU",
            "Gpu" => "GPU",
            _ => "TPU",
        })
        .collect();
    let name = field(row, constants, "name")?;
    let problem = field(row, constants, "problem")?;
    let plugin = field(row, constants, "plugin")?;
    let file = field(row, constants, "file")?;
    let test = field(row, constants, "test")?;
    Ok(format!("| `{name}` | {} | {problem} ({plugin}) | `{file}` | {test} |\n", platforms.join(", ")))
}

#[cfg(test)]
mod tests {
    #[test]
    fn rows_become_lines_of_a_table() {
        let source = r#"
const XLA: &str = "xla 1";
const CPU: &[Platform] = &[Platform::Cpu, Platform::Other];
const TABLE: &[Quirk] = &[
    Quirk {
        name: "lost-rows",
        platforms: CPU,
        plugin: XLA,
        problem: "rows are lost",
        file: "backend/rows.rs",
        test: "rows_are_kept",
    },
];
"#;
        let table = super::table(source).expect("a table");
        let last_line = table.trim_end().lines().last();
        assert_eq!(
            last_line,
            Some("| `lost-rows` | CPU | rows are lost (xla 1) | `backend/rows.rs` | rows_are_kept |")
        );
    }
}
