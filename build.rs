//! Says where git notes the commits that are checked out: the program, and not the library, reads the last one, so that a commit
//! builds nothing else anew. Cargo passes the variable on to what it runs, so its name is not that of an option. Outside of a
//! clone, as in an archive or an image, there is none.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(has_reflog)");
    let root = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    // In a worktree, .git is a file that names the folder.
    let file = std::fs::read_to_string(Path::new(&root).join(".git"));
    let git =
        file.as_deref().ok().and_then(|text| text.trim_end().strip_prefix("gitdir: ")).unwrap_or(".git");
    let reflog = Path::new(&root).join(git).join("logs/HEAD");
    if reflog.is_file() {
        println!("cargo::rustc-cfg=has_reflog");
        println!("cargo::rustc-env=CLONE_REFLOG={}", reflog.display());
    }
}
