//! `docs/platforms.md`: what compiles for TPUs and GPUs, by their own compilers, which `cargo xtask accelerators`
//! fetches.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

const OPEN: &str = "<!-- table, written by `cargo xtask platforms` -->\n";
const CLOSE: &str = "<!-- end of table -->";

/// The tests that make the lines: package, test, and function.
const SOURCES: [(&str, &str, &str); 2] =
    [("shardax-examples", "platforms", "programs_on_topologies"), ("shardax", "golden", "families_on_topologies")];

/// Writes the page from lines that were kept (`SHARDAX_PLATFORMS_OUT` says where the tests write them).
pub fn from(root: &Path, files: &[&str]) -> Result<(), String> {
    let lines = files.iter().map(|file| crate::read(Path::new(file))).collect::<Result<String, _>>()?;
    write(root, &lines)
}

/// Compiles everything and writes the page.
pub fn run(root: &Path) -> Result<(), String> {
    let mut lines = String::new();
    for (package, test, function) in SOURCES {
        let out = std::env::temp_dir().join(format!("shardax-platforms-{}", std::process::id()));
        let status = Command::new(env!("CARGO"))
            .args(["test", "--package", package, "--test", test, "--", "--ignored", "--exact", function, "--nocapture"])
            .env("SHARDAX_PLATFORMS_OUT", &out)
            .envs(crate::accelerators::variables()?)
            .current_dir(root)
            .status()
            .map_err(|e| format!("cannot start cargo: {e}"))?;
        if !status.success() {
            return Err(format!("{function} of {package} failed"));
        }
        lines += &crate::read(&out)?;
        let _ = std::fs::remove_file(&out);
    }
    write(root, &lines)
}

fn write(root: &Path, lines: &str) -> Result<(), String> {
    let page = root.join("docs/platforms.md");
    let text = crate::read(&page)?;
    let (before, rest) = text.split_once(OPEN).ok_or("docs/platforms.md has no place for the table")?;
    let (_, after) = rest.split_once(CLOSE).ok_or("docs/platforms.md: the table has no end")?;
    std::fs::write(&page, format!("{before}{OPEN}{}{CLOSE}{after}", table(lines)))
        .map_err(|e| format!("{}: {e}", page.display()))
}

/// The tables, from lines of fields that bars part.
fn table(lines: &str) -> String {
    let rows: Vec<Vec<&str>> = lines.lines().map(|line| line.split('|').collect()).collect();
    let mut text = String::from(
        "\n## Programs\n\n| program | what | devices | arguments | temporaries | collectives, and how often each runs |\n|---|---|---|--:|--:|---|\n",
    );
    for row in &rows {
        let ["program", name, what, on, arguments, temporaries, collectives] = row[..] else { continue };
        let (arguments, temporaries, collectives) = match arguments {
            "refused" => ("", String::new(), format!("does not compile: {temporaries}")),
            bytes => (bytes, kilobytes(temporaries), collectives.to_owned()),
        };
        let collectives = if collectives.is_empty() { "none".to_owned() } else { collectives };
        let _ =
            writeln!(text, "| `{name}` | {what} | {on} | {} | {temporaries} | {collectives} |", kilobytes(arguments));
    }
    text += "\nMemory is on each device.\n\n## Operations\n\n";
    let every = rows.iter().find_map(|row| (row[0] == "every").then(|| row[1])).unwrap_or("1");
    let which = match every {
        "1" => "All checks".to_owned(),
        n => format!("One check in {n}"),
    };
    let _ = writeln!(
        text,
        "{which} of the reference values (results, gradients, tangents and batches of every primitive), compiled for one\ndevice.\n"
    );
    let mut families = BTreeMap::<&str, BTreeMap<&str, (&str, &str)>>::new();
    let mut names: Vec<&str> = Vec::new();
    for row in &rows {
        let ["golden", family, on, compiled, all] = row[..] else { continue };
        families.entry(family).or_default().insert(on, (compiled, all));
        if !names.contains(&on) {
            names.push(on);
        }
    }
    let _ = writeln!(text, "| reference values | {} |", names.join(" | "));
    let _ = writeln!(text, "|---|{}", "--:|".repeat(names.len()));
    for (family, cells) in &families {
        let cell = |name: &&str| {
            cells.get(name).map_or(String::new(), |(compiled, all)| match compiled == all {
                true => format!("all {all}"),
                false => format!("{compiled} of {all}"),
            })
        };
        let _ = writeln!(text, "| {family} | {} |", names.iter().map(cell).collect::<Vec<_>>().join(" | "));
    }
    let refused: Vec<&Vec<&str>> = rows.iter().filter(|row| row[0] == "refused").collect();
    if !refused.is_empty() {
        text += "\nWhat does not compile, and why:\n\n";
        for row in refused {
            let [_, family, on, why, ..] = row[..] else { continue };
            let _ = writeln!(text, "- {family} for {on}: {why} ({})", row[4..].join("|"));
        }
    }
    text + "\n"
}

fn kilobytes(bytes: &str) -> String {
    bytes.parse::<f64>().map_or(String::new(), |bytes| format!("{:.1} kB", bytes / 1000.0))
}
