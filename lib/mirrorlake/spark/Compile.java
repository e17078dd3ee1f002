import java.io.File;
import java.io.FileOutputStream;
import java.util.Iterator;
import java.util.Map;

import org.codehaus.janino.SimpleCompiler;

/** Compiles one source file into a folder of classes, with the compiler that Spark ships. */
public class Compile {
    public static void main(String[] args) throws Exception {
        SimpleCompiler compiler = new SimpleCompiler();
        compiler.setParentClassLoader(ClassLoader.getSystemClassLoader());
        compiler.cookFile(args[0]);
        Iterator classes = compiler.getBytecodes().entrySet().iterator();
        while (classes.hasNext()) {
            Map.Entry entry = (Map.Entry) classes.next();
            String name = ((String) entry.getKey()).replace('.', '/') + ".class";
            File target = new File(args[1], name);
            target.getParentFile().mkdirs();
            FileOutputStream out = new FileOutputStream(target);
            out.write((byte[]) entry.getValue());
            out.close();
        }
    }
}
