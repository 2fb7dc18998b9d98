//! The rules for every page: it is usable by people with a disability as far as a program can tell, fits on a
//! telephone, and is small.

use serde_json::{Value, json};

use crate::support::browser::{Browser, SCHEMES, SIZES, axe, lighthouse, pictures};

/// The most bytes of a page with its style and its script, as they are sent.
const LARGEST: f64 = 200_000.0;

/// The widths of screens, from the smallest telephone to a desk.
const WIDTHS: [u32; 6] = [320, 360, 390, 768, 1024, 1280];

/// The greatest heights of the header, in pixels, by the sizes of screens: one row, and two.
const HEADERS: [f64; SIZES.len()] = [64.0, 112.0];

/// Examines the page in every size and scheme, and takes a picture of each. `name`: the name of the pictures.
pub async fn inspect(browser: &Browser, name: &str) {
    fits(browser, name).await;
    let axe = axe();
    for ((size, pixels), highest) in SIZES.into_iter().zip(HEADERS) {
        for scheme in SCHEMES {
            browser.look(pixels, scheme).await;
            let background =
                "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)";
            let background = browser.run(background, json!([])).await;
            let is_dark = background[0].as_u64().is_some_and(|red| red < 100);
            assert_eq!(is_dark, scheme == "dark", "{name}: {background}");
            let header = "const one = document.querySelector('header'); return one ? one.offsetHeight : 0";
            let header = browser.run(header, json!([])).await;
            assert!(header.as_f64() <= Some(highest), "{name}: the header takes {header} px of a {size}");
            browser.picture(&pictures().join(format!("{name}-{size}-{scheme}.png"))).await;
            assert_eq!(violations(browser, &axe).await, [] as [String; 0], "{name}, {size}, {scheme}");
        }
    }
    browser.look(SIZES[0].1, "light").await;
    let sum = "return ['navigation', 'resource'].flatMap((type) => performance.getEntriesByType(type)) \
        .filter((one) => one.initiatorType !== 'fetch').reduce((sum, one) => sum + one.transferSize, 0)";
    let bytes = browser.run(sum, json!([])).await;
    assert!(bytes.as_f64().is_some_and(|bytes| bytes < LARGEST), "{name} has {bytes} bytes");
}

/// Asserts that the page scrolls sideways on no screen, that no text leaves its box, and that short names are whole on a
/// desk.
pub async fn fits(browser: &Browser, name: &str) {
    for width in WIDTHS {
        browser.look((width, 800), "light").await;
        let overflow = "return document.documentElement.scrollWidth - innerWidth";
        let overflow = browser.run(overflow, json!([])).await;
        assert!(overflow.as_i64() <= Some(0), "{name} is {overflow} px too wide for {width} px");
        let scrolled = "return [...document.querySelectorAll('body *')].filter((one) => \
            one.scrollWidth > one.clientWidth + 1 && \
            (one.matches('.table, .counts a') || /auto|scroll/.test(getComputedStyle(one).overflowX))) \
            .map((one) => one.outerHTML.slice(0, 200))";
        let scrolled = browser.run(scrolled, json!([])).await;
        assert_eq!(scrolled, json!([]), "{name} is too wide for {width} px");
    }
    let broken = "return [...document.querySelectorAll('.table .short')].filter((one) => { \
        const range = document.createRange(); range.selectNodeContents(one); \
        return new Set([...range.getClientRects()].map((line) => Math.round(line.top))).size > 1; \
        }).map((one) => one.textContent)";
    let broken = browser.run(broken, json!([])).await;
    assert_eq!(broken, json!([]), "{name}: names that a desk breaks");
}

/// The least that Lighthouse gives a page in each category, of 100.
const RATING: u64 = 95;

/// How often Lighthouse measures at the most: how fast a page is shown depends on what else the machine does.
const MEASURED: usize = 3;

/// Lets Lighthouse rate the page, as on a telephone with a slow connection.
pub async fn rate(url: &str) {
    let mut rated = Vec::new();
    for _ in 0..MEASURED {
        let url = url.to_owned();
        rated = tokio::task::spawn_blocking(move || lighthouse(&url)).await.unwrap();
        if rated.iter().all(|(_, score)| *score >= RATING) {
            return;
        }
    }
    panic!("Lighthouse rates {url}: {rated:?}");
}

/// The violations that axe-core finds on the page, by the rules of WCAG 2.2 AA and good practice.
async fn violations(browser: &Browser, axe: &str) -> Vec<String> {
    browser.run(&format!("if (!window.axe) {{ {axe} }}"), json!([])).await;
    let tags = json!(["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]);
    let script = "const [values, answer] = arguments; \
        axe.run({ runOnly: { type: 'tag', values } }).then(answer, (error) => answer({ error: String(error) }))";
    let result = browser.run_async(script, json!([tags])).await;
    assert!(result["passes"].as_array().is_some_and(|passes| passes.len() > 5), "{result}");
    let told = |one: &Value| {
        let nodes = one["nodes"].as_array().into_iter().flatten();
        let nodes: Vec<String> =
            nodes.map(|node| format!("{} {}", node["html"], node["failureSummary"])).collect();
        format!("{}: {} {}", one["id"], one["help"], nodes.join("; "))
    };
    result["violations"].as_array().into_iter().flatten().map(told).collect()
}
