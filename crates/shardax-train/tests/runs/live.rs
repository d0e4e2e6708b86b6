//! Pages of runs that go on.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use shardax_train::log::Logger;
use shardax_train::report::LiveReport;

use super::Folder;

fn browser() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    std::env::split_paths(&folders).flat_map(|folder| names.map(|name| folder.join(name))).find(|path| path.is_file())
}

/// Opened in Chromium: the page that is there after the first was rewritten is drawn, without anything else loaded.
#[test]
fn a_browser_shows_the_page_of_a_running_job() {
    let folder = Folder::new();
    let path = folder.join("report.html");
    let mut page = LiveReport::new(&path, "a run").every(Duration::from_secs(1));
    for step in 1..=5000u64 {
        page.log(step, &[("loss".to_owned(), 1000.0 / step as f64), ("time/input_wait".to_owned(), 0.5)].into())
            .expect("logged");
    }
    page.flush().expect("a file");
    let html = std::fs::read_to_string(&path).expect("a page");
    assert!(html.contains("content=\"1\"") && html.contains("at step 5000"), "{}", &html[..500]);
    assert!(html.contains("<p>step 5000, last written ") && html.contains(" GMT</p>"), "{}", &html[..2000]);
    // Curves are thinned out, but for their first point: the axis reaches the largest loss.
    assert!(html.len() < 300_000, "{}", html.len());
    assert!(html.contains("\n800\n"), "{html}");
    assert!(!html.contains("src=\"http") && !html.contains("<script"));
    let ended = folder.join("ended.html");
    let mut other_report = LiveReport::new(&ended, "a run");
    other_report.log(7, &[("loss".to_owned(), 1.0)].into()).expect("logged");
    drop(other_report);
    let html = std::fs::read_to_string(&ended).expect("a page");
    assert!(html.contains("<p>step 7, ended, last written "), "{html}");
    let Some(browser) = browser() else { return println!("skipped: no Chromium") };
    let mut shown = Command::new("timeout");
    shown.arg("60").arg(browser).args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]);
    let shown = shown.arg(format!("file://{}", path.display())).output().expect("it runs");
    let dom = String::from_utf8_lossy(&shown.stdout);
    assert!(dom.contains("<h1>a run</h1>") && dom.contains("<svg"), "{dom} {}", String::from_utf8_lossy(&shown.stderr));
}
