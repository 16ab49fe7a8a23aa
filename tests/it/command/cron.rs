//! A crontab with the same line on five hosts.

use super::{Running, Scene};

/// The time is not waited for: it is taken from the key instead.
fn a_minute_passes(scene: &Scene) {
    redis::cmd("DEL").arg("minutely").exec(&mut scene.server.connection()).unwrap();
}

#[test]
fn of_five_hosts_one_runs_the_job_once_a_minute() {
    let scene = Scene::new();
    let args = "run --no-wait --at-least 50s minutely";
    let mut runs = 0;
    for minute in 1..=5 {
        let together: Vec<_> =
            (0..4).map(|_| Running::start(scene.distlock(args, "echo ran >>log"))).collect();
        let mut statuses: Vec<_> = together.into_iter().map(|host| host.end()).collect();
        // The clock of the last is late: it starts when the job has ended.
        statuses.push(scene.run(args, "echo ran >>log"));
        runs += statuses.iter().filter(|ended| ended.status == Some(0)).count();
        for ended in &statuses {
            assert!([Some(0), Some(75)].contains(&ended.status), "{}", ended.err);
            assert_eq!(ended.err, "", "cron would send it to somebody");
        }
        assert_eq!((runs, scene.read("log").lines().count()), (minute, minute));
        a_minute_passes(&scene);
    }
}
