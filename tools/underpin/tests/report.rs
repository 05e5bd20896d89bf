//! `underpin report`: recorded from a fake hypervisor, and looked at in a browser.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends where something is not as it should be"
)]

mod fake;

use fake::{Fake, underpin};
use serde_json::{Value, json};
use std::{env, fs, path::Path, process::Command};

/// Says what a browser makes of the page: how much wider it is than its window, which plots are
/// blank, and which of their parts lie outside their frames; how high it is, and where its plots are.
const LOOK: &str = r#"<script>
addEventListener("load", () => {
  const root = document.documentElement, found = [];
  if (root.scrollWidth > innerWidth) found.push("page is " + root.scrollWidth + " wide");
  for (const svg of document.querySelectorAll("svg")) {
    const frame = svg.getBoundingClientRect(), name = svg.getAttribute("aria-label");
    const drawn = [...svg.querySelectorAll("path")];
    const area = path => { const box = path.getBBox(); return Math.max(box.width, box.height); };
    if (frame.width < 200 || !drawn.some(path => area(path) > 50)) found.push("blank: " + name);
    for (const part of svg.querySelectorAll("path,text")) {
      const box = part.getBoundingClientRect();
      if (box.left < frame.left - 1 || box.right > frame.right + 1 ||
          box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        found.push("outside: " + name + ": " + part.textContent);
    }
  }
  const plots = [...document.querySelectorAll("svg")].map(svg => {
    const box = svg.getBoundingClientRect();
    return [svg.getAttribute("aria-label"), box.left, box.top, box.width, box.height];
  });
  const said = document.createElement("pre");
  said.hidden = true;
  said.textContent = "FOUND" + JSON.stringify({ found, plots, height: root.scrollHeight }) + "END";
  document.body.append(said);
});
</script>"#;

/// Says of a screenshot (the only image of its page) which plots have no colour in it, where curves and areas
/// have one and axes and letters have none, and whether anything touches its left or right edge.
const INK: &str = r#"<script>
addEventListener("load", () => {
  const shot = document.querySelector("img"), canvas = document.createElement("canvas"), found = [];
  const [width, height] = [canvas.width, canvas.height] = [shot.naturalWidth, shot.naturalHeight];
  const pen = canvas.getContext("2d");
  pen.drawImage(shot, 0, 0);
  const count = (box, is) => {
    const bytes = pen.getImageData(...box).data;
    let n = 0;
    for (let at = 0; at < bytes.length; at += 4) n += is(...bytes.slice(at, at + 3));
    return n;
  };
  const coloured = (...rgb) => Math.max(...rgb) - Math.min(...rgb) > 40;
  for (const [name, ...box] of PLOTS)
    if (count(box, coloured) < 300) found.push("no colour: " + name);
  const ground = pen.getImageData(0, 0, 1, 1).data;
  const inked = (...rgb) => rgb.some((part, n) => part != ground[n]);
  for (const left of [0, width - 1])
    if (count([left, 0, 1, height], inked)) found.push("something at " + left + " of " + width);
  const said = document.createElement("pre");
  said.textContent = "FOUND" + JSON.stringify(found) + "END";
  document.body.append(said);
});
</script>"#;

fn samples() -> String {
    let classes = tools_abi::EXIT_CLASSES;
    let line = |n: u32| {
        let wave = f64::from(n % 7);
        let exits = classes.iter().enumerate();
        let exits = exits.map(|(k, class)| ((*class).to_owned(), json!(wave * 90.0 * k as f64)));
        let exits: serde_json::Map<_, _> = exits.collect();
        let vm = |name: &str, part: f64| {
            json!({
                "name": name, "cpu_percent": 100.0 * part, "hypervisor_percent": 9.0 * wave,
                "steal_percent": 5.0, "idle_percent": 20.0, "exits_per_second": exits,
                "disk": { "read_bytes_per_second": 3e6 * wave, "written_bytes_per_second": 1e5 },
                "net": { "sent_bytes_per_second": 2e6 * wave, "received_bytes_per_second": 3e4 },
                "memory": { "private": 6e8 * part, "shared": 1e8 + 1e7 * wave },
            })
        };
        json!({
            "uptime_ns": 2_500_000_000_000_u64 + 1_000_000_000 * u64::from(n),
            "machine": { "cpus": 4, "cpus_busy": 2.5, "memory": 1_u64 << 40, "used": 1_u64 << 39,
                         "shared": 1_u64 << 30, "saved": 1_u64 << 31 },
            "vms": [vm("web1", 0.7), vm("a-name-of-thirty-two-letters-it-i", 1.9)],
        })
        .to_string()
    };
    (0..40).map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn report_records_a_run_and_draws_one_again() {
    let fake = Fake::start("report");
    let directory = fake.run_dir.join("report");
    let words = format!(
        "-o json report {} --for 2s --every 100ms",
        directory.display()
    );
    let output = fake.run(&words);
    assert!(output.status.success(), "{output:?}");
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(said["samples"].as_u64().unwrap() >= 2, "{said}");
    let page = fs::read_to_string(directory.join("index.html")).unwrap();
    assert!(page.contains("<h2>web1</h2>") && page.contains("<path"));
    // The samples that were kept make the same page.
    let samples = directory.join("samples.jsonl");
    let again = fake.run_dir.join("again");
    let words = format!("report {} --from {}", again.display(), samples.display());
    assert!(fake.run(&words).status.success());
    assert_eq!(fs::read_to_string(again.join("index.html")).unwrap(), page);
    fs::write(&samples, "{}\n").unwrap();
    let refused = fake.run(&words);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && why.contains("line 1"), "{why}");
}

#[test]
fn a_browser_shows_no_blank_plot_and_nothing_beyond_its_frame() {
    if env::var_os("UNDERPIN_NO_BROWSER").is_some() {
        eprintln!("skipped, as UNDERPIN_NO_BROWSER says: no browser looks at the report");
        return;
    }
    let browser = browser().expect(
        "no Chromium is here to look at the report: scripts/setup installs one, and \
         UNDERPIN_NO_BROWSER=1 goes without",
    );
    let directory = env::temp_dir().join(format!("underpin-report-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let file = directory.join("run.jsonl");
    fs::write(&file, samples()).unwrap();
    let words = format!("report {} --from {}", directory.display(), file.display());
    assert!(underpin(&words).status().unwrap().success());
    let page = fs::read_to_string(directory.join("index.html")).unwrap();
    let looked_at = directory.join("looked-at.html");
    fs::write(
        &looked_at,
        page.replace("</body>", &format!("{LOOK}</body>")),
    )
    .unwrap();
    for width in [1280, 500] {
        let found = look(browser, &looked_at, width).unwrap();
        assert_eq!(found["found"], json!([]), "in a window of {width}");
        let ink = shoot(browser, &looked_at, width, &found);
        assert_eq!(ink, Some(json!([])), "in a window of {width}");
    }
    // The browser would tell of a plot that is blank, and so would its picture.
    let blank = page
        .replace("<path", "<g")
        .replace("</body>", &format!("{LOOK}</body>"));
    fs::write(&looked_at, blank).unwrap();
    let found = look(browser, &looked_at, 1280).unwrap();
    assert!(
        found["found"].to_string().contains("blank: Memory"),
        "{found}"
    );
    let ink = shoot(browser, &looked_at, 1280, &found).unwrap();
    let plots = found["plots"].as_array().unwrap().len();
    assert_eq!(ink.as_array().map(Vec::len), Some(plots), "{ink}");
    fs::remove_dir_all(&directory).unwrap();
}

fn browser() -> Option<&'static str> {
    let there = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    ["chromium", "chromium-headless-shell", "chromium-browser"]
        .into_iter()
        .find(there)
}

/// Has a page opened by the browser, in a window of that size.
fn open(browser: &str, page: &Path, (width, height): (u32, u32), what: &str) -> String {
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu"])
        .args(["--hide-scrollbars", what])
        .arg(format!(
            "--user-data-dir={}",
            page.with_extension("profile").display()
        ))
        .arg(format!("--window-size={width},{height}"))
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What the page's script found.
fn look(browser: &str, page: &Path, width: u32) -> Option<Value> {
    let said = open(browser, page, (width, 900), "--dump-dom");
    let found = said.rsplit("FOUND").next()?.split("END").next()?;
    let plain = found.replace("&quot;", "\"").replace("&amp;", "&");
    serde_json::from_str(&plain).ok()
}

/// What is wrong in a screenshot of the whole page, by what was found on it: the browser decodes it.
fn shoot(browser: &str, page: &Path, width: u32, found: &Value) -> Option<Value> {
    let height = found["height"].as_u64()? as u32;
    let picture = page.with_extension("png");
    let what = format!("--screenshot={}", picture.display());
    open(browser, page, (width, height), &what);
    let shot = base64(&fs::read(&picture).ok()?);
    let script = INK.replace("PLOTS", &found["plots"].to_string());
    let ink = page.with_extension("ink.html");
    let image = format!("<img src=\"data:image/png;base64,{shot}\">");
    fs::write(&ink, format!("<!doctype html><body>{image}{script}</body>")).unwrap();
    look(browser, &ink, width)
}

/// Bytes as an address of data has them (RFC 4648).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let byte = |n: usize| u32::from(three.get(n).copied().unwrap_or(0));
        let all = byte(0) << 16 | byte(1) << 8 | byte(2);
        for n in 0..4 {
            let digit = DIGITS[(all >> (18 - 6 * n) & 63) as usize];
            text.push(if n <= three.len() { digit.into() } else { '=' });
        }
    }
    text
}
