//! What a packager installs: manual pages and completions.

use std::fs;

use super::Scene;

#[test]
fn there_is_a_manual_page_for_each_subcommand() {
    let scene = Scene::new();
    let folder = scene.path("man");
    fs::create_dir(&folder).unwrap();
    scene.ask("man man").is(0);
    let mut pages: Vec<_> =
        fs::read_dir(&folder).unwrap().map(|page| page.unwrap().file_name()).collect();
    pages.sort();
    for page in ["distlock.1", "distlock-run.1", "distlock-who.1", "distlock-watch.1"] {
        assert!(pages.contains(&page.into()), "{pages:?}");
    }
    let run = fs::read_to_string(folder.join("distlock-run.1")).unwrap();
    assert!(run.starts_with(".ie") && run.contains("\n.SH OPTIONS"), "{run}");
    assert!(run.contains("lost before CMD had ended"), "the exit statuses: {run}");
    scene.ask("man no/such/folder").is(71);
}

#[test]
fn a_shell_can_complete_its_arguments() {
    let scene = Scene::new();
    for (shell, says) in [("bash", "complete -F"), ("zsh", "#compdef"), ("fish", "complete -c")] {
        let ended = scene.ask(&format!("completions {shell}"));
        ended.is(0);
        assert!(ended.out.contains(says) && ended.out.contains("on-lost"), "{}", ended.out);
    }
}
