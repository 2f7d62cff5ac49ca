import "./styles/fonts.css";
import "./styles/tokens.css";
import "./styles/base.css";
import { mount } from "svelte";
import App from "./App.svelte";
import { takeToken } from "./lib/api";
import { app } from "./lib/app.svelte";
import { listen } from "./lib/keys";
import { router } from "./lib/router.svelte";

takeToken();
router.start();
listen();
mount(App, { target: document.getElementById("page") as HTMLElement });
void app.start();
