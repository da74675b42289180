"""Gradle: Java compiled and run by a build script; an init script is the attack."""

from __future__ import annotations

from collections.abc import Callable

from requirements import requirement
from support.actors import Actor
from tools.support import TOKEN, Tool, Work, siege

BUILD = """apply plugin: 'java'
task show(type: JavaExec, dependsOn: 'classes') { main = 'App'; classpath = sourceSets.main.runtimeClasspath }
"""
APP = 'public class App { public static void main(String[] a) { System.out.println("answer " + 6 * 7); } }\n'
FILES = {"build.gradle": BUILD, "settings.gradle": "", "src/main/java/App.java": APP,
         "init.gradle": "['sh', 'loot.sh'].execute(null, new File(System.getProperty('user.dir'))).waitFor()\n"}


@requirement("E.builds")
def test_gradle_builds_and_an_init_script_gets_nothing(actor: Actor, debian: Callable[..., Tool]) -> None:
    siege(actor, Work(
        files=FILES, commands=[["gradle", "-q", "-s", "-I", "init.gradle", "show"]], shows="answer 42", clean=["build", ".gradle"],
        caches=[".gradle"], tokens=[".gradle/gradle.properties"], token_text=f"password={TOKEN}\ntoken=\\\n{TOKEN}\n",
        tool=debian("gradle", "gradle")))
