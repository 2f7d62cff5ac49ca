import { createHash } from "node:crypto";
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, type Plugin } from "vite";

/** Put the scripts and styles of an export into its one HTML file, below a policy that names their hashes. */
function oneFile(): Plugin {
  const hash = (text: string) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;
  return {
    name: "upcall-one-file",
    enforce: "post",
    generateBundle(_, bundle) {
      const page = bundle["export.html"];
      if (page?.type !== "asset") throw new Error("export.html was not built");
      let script = "";
      let style = "";
      for (const [name, one] of Object.entries(bundle)) {
        if (one.type === "chunk") script += one.code;
        else if (name.endsWith(".css")) style += String(one.source);
        if (one !== page) delete bundle[name];
      }
      // There is nothing to preload: Vite leaves its mark where everything is in one file.
      script = script.replaceAll("__VITE_PRELOAD__", "void 0");
      script = script.replaceAll("</script", "<\\/script").replaceAll("<!--", "<\\!--");
      const policy = [
        "default-src 'none'",
        `script-src ${hash(script)}`,
        `style-src ${hash(style)}`,
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types svelte-trusted-html dompurify",
      ].join("; ");
      page.source = String(page.source)
        .replace(/\s*<script type="module"[^>]*><\/script>/, "")
        .replace(/\s*<link rel="stylesheet"[^>]*>/, "")
        .replace("<head>", () => `<head>\n    <meta http-equiv="Content-Security-Policy" content="${policy}">`)
        .replace("</head>", () => `<style>${style}</style>\n  </head>`)
        .replace("</body>", () => `<script type="module">${script}</script>\n  </body>`);
    },
  };
}

export default defineConfig(({ mode }) => {
  const exported = mode === "export";
  return {
    base: "./",
    plugins: [svelte(), ...(exported ? [oneFile()] : [])],
    html: exported ? {} : { cspNonce: "__NONCE__" },
    define: { __EXPORT__: JSON.stringify(exported) },
    build: {
      outDir: "../src/upcall/hosts/web/page",
      target: "es2023",
      emptyOutDir: !exported,
      assetsInlineLimit: 0,
      modulePreload: { polyfill: false },
      cssCodeSplit: !exported,
      rolldownOptions: exported
        ? { input: "export.html", output: { codeSplitting: false } }
        : { input: "index.html" },
    },
  };
});
