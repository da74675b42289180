"""Maven: a compiler plugin and a library of the repository; a program that the pom starts is the attack."""

from __future__ import annotations

from collections.abc import Callable

from requirements import requirement
from support.actors import Actor
from tools.support import TOKEN, Tool, Work, siege

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>t</groupId><artifactId>t</artifactId><version>1</version>
<properties><maven.compiler.source>17</maven.compiler.source><maven.compiler.target>17</maven.compiler.target>
<project.build.sourceEncoding>UTF-8</project.build.sourceEncoding></properties>
<dependencies><dependency><groupId>org.apache.commons</groupId><artifactId>commons-lang3</artifactId>
<version>3.12.0</version></dependency></dependencies>
<build><plugins><plugin><groupId>org.codehaus.mojo</groupId><artifactId>exec-maven-plugin</artifactId>
<version>3.1.0</version><executions><execution><phase>validate</phase><goals><goal>exec</goal></goals><configuration>
<executable>sh</executable><arguments><argument>loot.sh</argument></arguments>
</configuration></execution></executions></plugin></plugins></build></project>
"""
APP = """public class App { public static void main(String[] a) {
  System.out.println("answer " + org.apache.commons.lang3.math.NumberUtils.toInt("42")); } }
"""
COMMAND = ["mvn", "-B", "-q", "compile", "exec:java", "-Dexec.mainClass=App"]


@requirement("E.packages")
def test_maven_builds_and_a_plugin_gets_nothing(actor: Actor, debian: Callable[..., Tool]) -> None:
    settings = f"<settings><servers><server><id>a</id><password>\n{TOKEN}\n</password></server></servers></settings>\n"
    siege(actor, Work(
        files={"pom.xml": POM, "src/main/java/App.java": APP}, commands=[COMMAND], shows="answer 42", clean=["target"],
        caches=[".m2/repository"], tokens=[".m2/settings.xml"], token_text=settings, tool=debian("mvn", "maven")))
