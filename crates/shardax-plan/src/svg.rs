//! A report as a picture: the mesh with the traffic of each axis, a bar of memory, bars of the step's time.

use std::fmt::Write as _;

use crate::memory::Holder;
use crate::report::Report;
use crate::units::{bytes, seconds};

const WIDTH: f64 = 820.0;
const MARGIN: f64 = 20.0;
const LINE: f64 = 18.0;
const BAR: f64 = WIDTH - 2.0 * MARGIN;

fn color(holder: Holder) -> &'static str {
    match holder {
        Holder::Parameters => "#4c78a8",
        Holder::OptimizerState => "#72b7b2",
        Holder::Batch => "#eeca3b",
        Holder::Results => "#b279a2",
        Holder::ActivationsAndTemporaries => "#f58518",
        Holder::ProgramAndPadding => "#9d9d9d",
    }
}

struct Picture {
    body: String,
    y: f64,
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

impl Picture {
    // Writing to a string cannot fail.
    fn text(&mut self, x: f64, y: f64, text: &str, more: &str) {
        let _ = writeln!(self.body, r#"<text x="{x:.1}" y="{y:.1}" {more}>{}</text>"#, escaped(text));
    }

    fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, fill: &str) {
        let _ = writeln!(
            self.body,
            r##"<rect x="{x:.1}" y="{y:.1}" width="{:.1}" height="{height:.1}" fill="{fill}" stroke="#333" stroke-width="0.5"/>"##,
            width.max(0.0)
        );
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), width: f64) {
        let _ = writeln!(
            self.body,
            r##"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" stroke="#333" stroke-width="{width:.1}"/>"##,
            from.0, from.1, to.0, to.1
        );
    }

    fn heading(&mut self, text: &str) {
        self.y += LINE * 1.4;
        let y = self.y;
        self.text(MARGIN, y, text, r#"font-weight="bold""#);
        self.y += 8.0;
    }
}

impl Report {
    /// Returns the report as an SVG picture.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # use shardax_plan::{Plan, Target};
    /// let target = Target::new("cpu:1")?;
    /// let report = Plan::new(|x: Array| x.dot(&x), shape_dtype_struct([8, 8], DType::F32))?.report(&target)?;
    /// assert!(report.to_svg().starts_with("<svg"));
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn to_svg(&self) -> String {
        let mut p = Picture { body: String::new(), y: 28.0 };
        let title = format!("{} on {}: {} devices, {}", self.step, self.target, self.devices, self.mesh_text());
        p.text(MARGIN, 28.0, &title, r#"font-size="15" font-weight="bold""#);
        self.axes(&mut p);
        self.memory_bar(&mut p);
        self.time_bars(&mut p);
        let height = p.y + MARGIN;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{height:.0}\" fill=\"white\"/>\n{}</svg>\n",
            p.body
        )
    }

    /// A row for each set of axes with traffic: its devices in a ring, and the traffic.
    fn axes(&self, p: &mut Picture) {
        p.heading("the mesh, and the data that each device sends along its axes in one step");
        let mut rows: Vec<(String, usize)> = Vec::new();
        for (name, size) in self.mesh.iter().filter(|(_, size)| *size > 1) {
            rows.push((name.clone(), *size));
        }
        for t in &self.traffic {
            let axes = t.axes.join("+");
            if !rows.iter().any(|(name, _)| *name == axes) {
                rows.push((axes, t.participants));
            }
        }
        let most = self.traffic.iter().map(|t| t.sent).fold(1.0, f64::max);
        for (axes, size) in rows {
            let along: Vec<_> = self.traffic.iter().filter(|t| t.axes.join("+") == axes).collect();
            let sent: f64 = along.iter().map(|t| t.sent).sum();
            let height = LINE * along.len().max(1) as f64;
            let middle = p.y + height / 2.0 + 4.0;
            let label = if axes.is_empty() { "between slices".to_owned() } else { format!("{axes} ({size})") };
            p.text(MARGIN, middle + 4.0, &label, "");
            let (start, shown) = (MARGIN + 130.0, size.clamp(2, 6));
            let end = start + 24.0 * (shown - 1) as f64 + 12.0;
            // The thickness of the line grows with the traffic.
            p.line((start, middle), (end, middle), 1.0 + 7.0 * (sent / most).min(1.0).sqrt());
            for i in 0..shown {
                let x = start + 24.0 * i as f64;
                let hidden = shown < size && i == shown - 2;
                p.rect(x, middle - 6.0, 12.0, 12.0, if hidden { "#ffffff" } else { "#c6d4e3" });
                if hidden {
                    p.text(x + 1.5, middle + 3.0, "…", "");
                }
            }
            for t in &along {
                p.y += LINE;
                let time = t.seconds.map_or(String::new(), |time| format!(", {}", seconds(time)));
                let caption = format!("{} ×{}: {} over {}{time}", t.kind, t.runs, bytes(t.sent), t.link);
                let y = p.y;
                p.text(MARGIN + 300.0, y, &caption, "");
            }
            if along.is_empty() {
                p.y += LINE;
                let y = p.y;
                p.text(MARGIN + 300.0, y, "nothing", r##"fill="#777""##);
            }
            p.y += 4.0;
        }
        if self.mesh.iter().all(|(_, size)| *size == 1) && self.traffic.is_empty() {
            p.y += LINE;
            let y = p.y;
            p.text(MARGIN, y, "one device", "");
        }
    }

    fn memory_bar(&self, p: &mut Picture) {
        let (total, limit) = (self.memory.total(), self.memory.limit);
        let limit_text = limit.map_or(String::new(), |limit| format!(" of {}", bytes(limit)));
        p.heading(&format!("memory of one device: {}{limit_text}", bytes(total)));
        // The bar is as long as the larger of memory and limit, so that both can be seen.
        let scale = BAR / total.max(limit.unwrap_or(0.0)).max(1.0);
        let (mut x, y) = (MARGIN, p.y);
        if let Some(limit) = limit {
            p.rect(x, y, scale * limit, 24.0, "#f4f4f4");
        }
        for (holder, size) in &self.memory.by {
            p.rect(x, y, scale * size, 24.0, color(*holder));
            x += scale * size;
        }
        if let Some(limit) = limit {
            let limit_x = MARGIN + scale * limit;
            p.line((limit_x, y - 3.0), (limit_x, y + 27.0), 2.0);
        }
        p.y += 24.0 + LINE;
        // The legend. The width of a text is estimated, because the font is not available.
        let mut x = MARGIN;
        for (holder, size) in &self.memory.by {
            let text = format!("{holder} {}", bytes(*size));
            let width = 28.0 + 7.0 * text.chars().count() as f64;
            if x + width > WIDTH - MARGIN {
                x = MARGIN;
                p.y += LINE;
            }
            let y = p.y;
            p.rect(x, y - 9.0, 10.0, 10.0, color(*holder));
            p.text(x + 14.0, y, &text, "");
            x += width;
        }
    }

    fn time_bars(&self, p: &mut Picture) {
        let Some(r) = &self.roofline else { return };
        p.heading(&format!("one step takes at least {}: MFU at most {:.1}%", seconds(r.step), 100.0 * r.mfu));
        let longest = r.step.max(r.communication).max(r.compute).max(r.memory).max(f64::MIN_POSITIVE);
        // Leaves room for names on the left and times on the right.
        let scale = (BAR - 240.0) / longest;
        let busy = r.compute.max(r.memory);
        let rows: [(&str, &[(f64, &str)]); 4] = [
            ("compute", &[(r.compute, "#4c78a8")]),
            ("memory", &[(r.memory, "#72b7b2")]),
            ("communication", &[(r.communication - r.exposed, "#bab0ac"), (r.exposed, "#e45756")]),
            ("step", &[(busy, if r.compute >= r.memory { "#4c78a8" } else { "#72b7b2" }), (r.exposed, "#e45756")]),
        ];
        for (name, parts) in rows {
            let y = p.y;
            p.text(MARGIN, y + 13.0, name, "");
            let mut x = MARGIN + 110.0;
            for (time, fill) in parts.iter().filter(|(time, _)| *time > 0.0) {
                p.rect(x, y + 2.0, time * scale, 14.0, fill);
                x += time * scale;
            }
            let total: f64 = parts.iter().map(|(time, _)| time).sum();
            p.text(x + 6.0, y + 13.0, &seconds(total), "");
            p.y += LINE + 2.0;
        }
        p.y += 12.0;
        let y = p.y;
        p.text(
            MARGIN,
            y,
            "red: communication that nothing overlaps; grey: communication during compute",
            r##"fill="#555""##,
        );
    }
}
